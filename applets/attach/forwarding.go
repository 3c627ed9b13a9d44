package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/rtnl"
	"cnibox/spec"
)

// WithoutIPv6 explains EACCES for an address of a link of the host: IPv6 is disabled on it.
// The code is 50.
func WithoutIPv6(err error, link string) error {
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	return spec.Errorf(spec.CodeNotReady, "IPv6 is off on %s: set net/ipv6/conf/%s/disable_ipv6 to 0 on the host, for a new link that of default, or have \"ipam\" give no IPv6 address: %w", link, link, err)
}

// SkipDAD has the host's link use its link-local address at once.
func SkipDAD(op *Op, name string) error {
	return netns.Host().SetSysctls(netns.Sysctl{Key: "net/ipv6/conf/" + name + "/accept_dad", Value: "0", Optional: true})
}

// SwitchForwarding makes the host forward for the families of the result that have a
// gateway: last in an ADD, since others may need it as soon as it is on. unused
// calls its argument if none does, for an ADD that fails.
func SwitchForwarding(op *Op, unused func(restore func() error) error) error {
	for _, s := range forwarding(op.Result.IPs) {
		old, err := netns.Host().Sysctl(s.Key)
		if err == nil && old == s.Value {
			continue
		}
		err = netns.Host().SetSysctls(s)
		if errors.Is(err, unix.EROFS) {
			return spec.Errorf(spec.CodeNotReady, "forwarding is off, and cannot be switched on from here: set %s to 1 on the host: %w", s.Key, err)
		}
		if err != nil {
			return err
		}
		op.Did("%s set to %s", s.Key, s.Value)
		op.Undo(s.Key, func(context.Context) error {
			return unused(func() error { return netns.Host().SetSysctl(s.Key, old) })
		})
	}
	return nil
}

// ForwardingOff is the text of CHECK about a switch of the host that is off. It is not about one
// attachment.
func ForwardingOff(key string) string { return fmt.Sprintf("forwarding is off: %s is 0", key) }

// CheckForwarding checks that it is on. It counts as on if it cannot be read, as of a family that
// the kernel lacks.
func CheckForwarding(op *Op) error {
	for _, s := range forwarding(op.Own()) {
		if v, err := netns.Host().Sysctl(s.Key); err == nil && v == "0" {
			return Mismatch("%s", ForwardingOff(s.Key))
		}
	}
	return nil
}

// forwarding are the switches for the families that have a gateway.
// They are the host's and never switched off, as in the reference: others may need them.
func forwarding(ips []spec.IP) []netns.Sysctl {
	var v4, v6 bool
	for _, ip := range ips {
		v4 = v4 || ip.Gateway.Is4()
		v6 = v6 || ip.Gateway.Is6()
	}
	var all []netns.Sysctl
	if v4 {
		all = append(all, netns.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
	}
	if v6 {
		all = append(all, netns.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"})
	}
	return all
}

// HasAddr looks for an address, host bits and all, among those of a link.
func HasAddr(list []rtnl.Addr, p netip.Prefix) bool {
	for _, a := range list {
		if a.Prefix == p {
			return true
		}
	}
	return false
}
