package rtnl_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// Listening sockets are returned with their address, connected ones are not.
func TestKernelListeners(t *testing.T) {
	ns := kerneltest.NS(t)
	kerneltest.LoUp(t, ns)
	only := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1) })
	}}
	dual := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0) })
	}}
	err := ns.Do(func() error {
		for _, l := range []struct {
			net.ListenConfig
			network, addr string
		}{
			{dual, "tcp", "[::]:10"}, {only, "tcp6", "[::]:11"}, {net.ListenConfig{}, "tcp4", "127.0.0.1:12"}, {net.ListenConfig{}, "tcp4", "0.0.0.0:13"},
		} {
			s, err := l.Listen(context.Background(), l.network, l.addr)
			if err != nil {
				return err
			}
			t.Cleanup(func() { s.Close() })
		}
		u, err := net.ListenPacket("udp6", "[::1]:14")
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		for network, to := range map[string]string{"tcp": "127.0.0.1:12", "udp": "[::1]:14"} {
			c, err := net.Dial(network, to)
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for protocol, want := range map[uint8][]string{
		unix.IPPROTO_TCP: {"0.0.0.0:13", "127.0.0.1:12", "[::]:10", "[::]:11 only"},
		unix.IPPROTO_UDP: {"[::1]:14"},
	} {
		list, err := rtnl.Listeners(ns, protocol)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range list {
			text := l.Addr.String()
			if l.V6Only && l.Addr.Addr() == netip.IPv6Unspecified() {
				text += " only"
			}
			if l.Inode == 0 {
				text += " without inode"
			}
			got = append(got, text)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("protocol %d: got %v, want %v", protocol, got, want)
		}
	}
}
