package tcredirecttap_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

const bridge = applettest.GatewayConf

func conf(keys string) string {
	return applettest.Conf("tc-redirect-tap", `"dataDir":"$DIR/taps"`+keys)
}

// A vm is a container with a bridge's interface, and the results of ADD.
type vm struct {
	*applettest.Host
	c      applettest.Container
	conn   *rtnl.Conn
	before string // prevResult of the plugin
	result string
}

func newVM(t *testing.T, h *applettest.Host, id, keys string, env ...string) *vm {
	t.Helper()
	v := &vm{Host: h, c: h.Container(id)}
	applettest.SetDAD(t, v.c.NS, "0", "0")
	v.conn = kerneltest.Dial(t, v.c.NS)
	v.before = h.Must(spec.Add, "bridge", bridge, v.c)
	v.result = h.Must(spec.Add, "tc-redirect-tap", applettest.Prev(conf(keys), v.before), v.c, env...)
	return v
}

func (v *vm) check(want string) {
	v.Helper()
	code, out := v.Call(spec.Check, "tc-redirect-tap", applettest.Prev(conf(""), v.result), v.c)
	if want == "" && code != 0 || want != "" && (code != spec.CodeCheck || !strings.Contains(out, want)) {
		v.Errorf("CHECK answers %d %s, want %q", code, out, want)
	}
}

func (v *vm) link(name string) *rtnl.Link {
	v.Helper()
	return kerneltest.Link(v.T, v.conn, name)
}

// open opens a tap as a virtual machine does.
func open(t *testing.T, ns *netns.NS, name string) *os.File {
	t.Helper()
	var f *os.File
	err := ns.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		f = os.NewFile(uintptr(fd), name) // not before: epoll(7) would wait for nothing
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// boot makes a namespace in place of a virtual machine: its eth0 has the MAC address and the addresses of the
// interface of the container, and its packets are those of the tap.
func (v *vm) boot(tap string) *netns.NS {
	v.Helper()
	guest := kerneltest.NS(v.T)
	applettest.SetDAD(v.T, guest, "0", "0")
	v.NoError(guest.Do(func() error { return rtnl.CreateTap("eth0", rtnl.Tap{}) }))
	c := kerneltest.Dial(v.T, guest)
	eth := v.link("eth0")
	index := kerneltest.Link(v.T, c, "eth0").Index
	v.NoError(c.SetLink(index, rtnl.LinkChange{MAC: eth.MAC, MTU: &eth.MTU, Up: new(true)}))
	addrs, err := v.conn.Addrs(eth.Index)
	v.NoError(err)
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			v.NoError(c.AddAddr(index, rtnl.Addr{Prefix: a.Prefix, NoDAD: true}))
		}
	}
	kerneltest.DefaultRoutes(v.T, guest, index, "10.1.0.1", "fd00:1::1")
	inner, outer := open(v.T, guest, "eth0"), open(v.T, v.c.NS, tap)
	for _, way := range [][2]*os.File{{inner, outer}, {outer, inner}} {
		go func() {
			b := make([]byte, 1<<17)
			for {
				n, err := way[0].Read(b)
				if err != nil {
					return
				}
				way[1].Write(b[:n])
			}
		}()
	}
	return guest
}

// Packets of the virtual machine leave by the interface, and what arrives for its addresses reaches it: TCP and
// UDP of both families, to and from the host, another machine, and outside. After DEL the container has the
// interface as it was.
func TestKernelTraffic(t *testing.T) {
	applettest.NeedRedirect(t)
	applettest.NeedBridge(t)
	h := applettest.NewHost(t)
	v := newVM(t, h, "vm", "")
	h.Must(spec.Del, "tc-redirect-tap", applettest.Prev(conf(""), v.result), v.c)
	bare := kerneltest.Snapshot(t, v.c.NS)
	v.result = h.Must(spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), v.before), v.c)
	guest := v.boot("tap0")
	other := newVM(t, h, "other", "")
	second := other.boot("tap0")
	h.Listen(guest, "vm")
	h.Listen(second, "second")
	h.Listen(h.NS, "host")
	h.Listen(v.c.NS, "container")
	for _, network := range []string{"tcp", "udp"} {
		h.Want(h.NS, network, "10.1.0.2:80", "vm 10.1.0.1")
		h.Want(h.NS, network, "[fd00:1::2]:80", "vm fd00:1::1")
		h.Want(guest, network, "10.1.0.1:80", "host 10.1.0.2")
		h.Want(guest, network, "[fd00:1::1]:80", "host fd00:1::2")
		h.Want(second, network, "10.1.0.2:80", "vm 10.1.0.3")
		h.Want(guest, network, "[fd00:1::3]:80", "second fd00:1::2")
	}
	v.check("")
	other.check("")
	h.Must(spec.Check, "bridge", applettest.Prev(bridge, v.result), v.c)
	h.Must(spec.Del, "tc-redirect-tap", applettest.Prev(conf(""), v.result), v.c)
	if after := kerneltest.Snapshot(t, v.c.NS); after != bare {
		t.Errorf("DEL while the tap is open leaves\n%s", kerneltest.Diff(bare, after))
	}
	h.Must(spec.Del, "tc-redirect-tap", applettest.Prev(conf(""), v.result), v.c)
	h.Want(h.NS, "tcp", "10.1.0.2:80", "container 10.1.0.1")
	h.Want(h.NS, "tcp", "10.1.0.3:80", "second 10.1.0.1")
}

// The result is that of the reference: the tap, and the interface of the virtual machine with the container ID as
// sandbox, to which the addresses belong once more.
func TestKernelResult(t *testing.T) {
	applettest.NeedRedirect(t)
	applettest.NeedBridge(t)
	h := applettest.NewHost(t)
	v := newVM(t, h, "vm", `,"tap_name":"fromkey","uid":7,"gid":8`, "CNI_ARGS=TC_REDIRECT_TAP_NAME=vm-tap;TC_REDIRECT_TAP_UID=107;TC_REDIRECT_TAP_GID=0")
	res, err := spec.ParseResult([]byte(v.result), spec.Newest)
	h.NoError(err)
	tap, eth := v.link("vm-tap"), v.link("eth0")
	var got []string
	for _, i := range res.Interfaces[len(res.Interfaces)-3:] {
		got = append(got, fmt.Sprint(i.Name, " ", i.MAC, " ", i.Sandbox))
	}
	want := []string{
		fmt.Sprint("eth0 ", eth.MAC, " ", v.c.Path), fmt.Sprint("vm-tap ", tap.MAC, " ", v.c.Path), fmt.Sprint("vm-tap ", eth.MAC, " vm"),
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("interfaces:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	got = nil
	for _, ip := range res.IPs {
		got = append(got, fmt.Sprint(ip.Address, " ", ip.Gateway, " ", *ip.Interface-len(res.Interfaces)))
	}
	want = []string{"10.1.0.2/24 10.1.0.1 -3", "fd00:1::2/64 fd00:1::1 -3", "10.1.0.2/24 10.1.0.1 -1", "fd00:1::2/64 fd00:1::1 -1"}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("addresses: %q, want %q", got, want)
	}
	if tap.MTU != eth.MTU || !tap.Up || spec.LabelKey(tap.Alias) == "" {
		t.Errorf("tap: %+v", tap)
	}
	for user, want := range map[int]bool{107: true, 7: false} {
		err := openAs(v.c.NS, "vm-tap", user)
		if want != (err == nil) {
			t.Errorf("user %d opens the tap: %v", user, err)
		}
	}
}

// openAs opens a tap as a user who has no capability.
func openAs(ns *netns.NS, name string, uid int) error {
	return netns.OnDiscardedThread(func() error {
		if err := ns.Enter(); err != nil {
			return err
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// of this thread alone: the functions of x/sys and syscall change all
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			return errno
		}
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	})
}

// CHECK finds each part that is missing, and RESTORE makes it again, with the name and the address that the
// result has.
func TestKernelCheckAndRestore(t *testing.T) {
	applettest.NeedRedirect(t)
	applettest.NeedBridge(t)
	h := applettest.NewHost(t)
	v := newVM(t, h, "vm", "", "CNI_ARGS=TC_REDIRECT_TAP_NAME=tap7")
	before := h.Snapshot(v.c)
	eth, tap := v.link("eth0").Index, v.link("tap7").Index
	for _, tt := range []struct {
		what, want string
		ops        []rtnl.Op
	}{
		{"the filter of the interface", "what eth0 receives is not redirected to tap7", []rtnl.Op{rtnl.DropRedirects(eth)}},
		{"the qdisc of the interface", "what eth0 receives is not redirected to tap7", []rtnl.Op{rtnl.DropIngress(eth)}},
		{"the filter of the tap", "what tap7 receives is not redirected to eth0", []rtnl.Op{rtnl.DropRedirects(tap)}},
		{"the qdisc of the tap", "what tap7 receives is not redirected to eth0", []rtnl.Op{rtnl.DropIngress(tap)}},
		{"up", "tap7 is down", []rtnl.Op{rtnl.ChangeLink(tap, rtnl.LinkChange{Up: new(false)})}},
		{"the tap", "the tap of eth0 is missing", []rtnl.Op{rtnl.DropLink(tap)}},
	} {
		h.NoError(v.conn.Do(tt.ops...))
		v.check(tt.want)
		for range 2 {
			h.Restore("tc-redirect-tap", applettest.Prev(conf(""), v.result), v.c)
		}
		v.check("")
		h.Same("RESTORE of "+tt.what, before, h.Snapshot(v.c))
	}
	tap = v.link("tap7").Index
	h.NoError(v.conn.SetLink(tap, rtnl.LinkChange{Up: new(false)}))
	h.NoError(v.conn.SetLink(tap, rtnl.LinkChange{Name: new("moved")}))
	v.check("the tap of eth0 is moved, not tap7")
}

// Who asks for what cannot be gets an error, and nothing is made.
func TestKernelRefused(t *testing.T) {
	applettest.NeedRedirect(t)
	applettest.NeedBridge(t)
	h := applettest.NewHost(t)
	c := h.Container("vm")
	applettest.SetDAD(t, c.NS, "0", "0")
	h.Refuse(spec.CodeConfig, "no previous result was found", spec.Add, "tc-redirect-tap", conf(""), c)
	prev := h.Must(spec.Add, "bridge", bridge, c)
	h.NoError(c.NS.Do(func() error { return rtnl.CreateTap("tap0", rtnl.Tap{}) }))
	for args, want := range map[string]string{
		"TC_REDIRECT_TAP_NAME=longer-than-15-bytes": "TC_REDIRECT_TAP_NAME",
		"TC_REDIRECT_TAP_NAME=a/b":                  "TC_REDIRECT_TAP_NAME",
		"TC_REDIRECT_TAP_UID=root":                  `tapUID should be numeric convertible, got \"root\"`,
		"TC_REDIRECT_TAP_GID=-1":                    `tapGID should be numeric convertible, got \"-1\"`,
		"TC_REDIRECT_TAP_UID=4294967296":            "tapUID",
	} {
		h.Refuse(spec.CodeEnv, want, spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), prev), c, "CNI_ARGS="+args)
	}
	for _, name := range []string{"tap0", "eth0", "lo"} {
		h.Refuse(spec.CodeBusy, "already exists", spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), prev), c, "CNI_ARGS=TC_REDIRECT_TAP_NAME="+name)
	}
	h.Refuse(spec.CodeConfig, "net1", spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), prev), c, "CNI_IFNAME=net1")

	// the first free name
	result := h.Must(spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), prev), c)
	if !strings.Contains(result, `"tap1"`) {
		t.Errorf("with tap0 in use the result is %s", result)
	}
	h.Refuse(spec.CodeBusy, "eth0 has the tap tap1 already", spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), prev), c)
	h.Must(spec.Check, "tc-redirect-tap", applettest.Prev(conf(""), result), c)
	h.Must(spec.Del, "tc-redirect-tap", conf(""), c)
	conn := kerneltest.Dial(t, c.NS)
	tap0, eth := kerneltest.Link(t, conn, "tap0"), kerneltest.Link(t, conn, "eth0")
	if _, err := conn.Link("tap1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("tap1 after DEL: %v", err)
	}

	// an ingress qdisc of someone else
	lo := kerneltest.Link(t, conn, "lo")
	h.NoError(conn.Do(rtnl.NewIngress(eth.Index), rtnl.NewRedirect(eth.Index, lo.Index)))
	h.Refuse(spec.CodeBusy, "is redirected to link #1 already", spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), prev), c)
	before := h.Snapshot(c)
	h.Must(spec.Del, "tc-redirect-tap", applettest.Prev(conf(""), prev), c)
	h.Same("DEL", before, h.Snapshot(c))
	h.NoError(conn.Do(rtnl.DropIngress(eth.Index), rtnl.DropLink(tap0.Index)))

	// a prevResult that does not know the interface
	result = h.Must(spec.Add, "tc-redirect-tap", applettest.Prev(conf(""), `{"cniVersion":"1.1.0","interfaces":[{"name":"br0"}]}`), c)
	if strings.Contains(result, `"ips"`) || !strings.Contains(result, `"sandbox": "vm"`) {
		t.Errorf("result without addresses: %s", result)
	}
	h.Must(spec.Del, "tc-redirect-tap", conf(""), c)
}

// DEL deletes a tap of the reference, which has neither a label nor a record.
func TestKernelDelOfReference(t *testing.T) {
	applettest.NeedRedirect(t)
	applettest.NeedBridge(t)
	h := applettest.NewHost(t)
	v := newVM(t, h, "vm", "")
	h.Must(spec.Del, "tc-redirect-tap", conf(""), v.c)
	before := h.Snapshot(v.c)
	h.NoError(v.c.NS.Do(func() error { return rtnl.CreateTap("tap3", rtnl.Tap{}) }))
	tap, eth := v.link("tap3").Index, v.link("eth0").Index
	h.NoError(v.conn.Do(rtnl.ChangeLink(tap, rtnl.LinkChange{Up: new(true)}), rtnl.NewIngress(tap), rtnl.NewIngress(eth),
		rtnl.NewRedirect(tap, eth), rtnl.NewRedirect(eth, tap)))
	h.Must(spec.Del, "tc-redirect-tap", applettest.Prev(conf(""), v.before), v.c)
	h.Same("DEL", before, h.Snapshot(v.c))
}

// DEL of a late runtime, whose path of the namespace another container has, changes nothing there.
func TestKernelDelOfOtherContainer(t *testing.T) {
	applettest.NeedRedirect(t)
	applettest.NeedBridge(t)
	h := applettest.NewHost(t)
	v := newVM(t, h, "vm", "")
	before := h.Snapshot(v.c)
	late := v.c
	late.ID = "late"
	h.Must(spec.Del, "tc-redirect-tap", conf(""), late)
	h.Same("DEL", before, h.Snapshot(v.c))
}
