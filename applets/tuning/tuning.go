// Package tuning is the CNI plugin tuning: sysctls and link attributes of an interface that an earlier plugin made.
package tuning

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "tuning",
	Conf:    conf{},
	Summary: "sysctls and link attributes of an interface that an earlier plugin made",
	Help: `
key       type    default          meaning
sysctl    object  -                settings below net and their values, as strings:
                                   {"net.ipv4.conf.IFNAME.arp_filter": "1"}; IFNAME is the
                                   interface; dots inside names: net.ipv4.conf.eth0/5.x or
                                   net/ipv4/conf/eth0.5/x
mac       string  as it is         MAC address
promisc   bool    as it is         true: receive all packets; CHECK compares false too
mtu       int     as it is         bytes; 0: as it is
allmulti  bool    as it is         receive all multicast packets, or do not
txQLen    int     as it is         packets in the transmit queue
dataDir   string  /run/cni/tuning  stores a record until DEL, with the former attributes

Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.
args.cni.sysctl, promisc, mtu, allmulti and txQLen replace the keys of the same name.

If /etc/cni/tuning/allowlist.conf exists, each sysctl must match a line of it, which are regular
expressions that may match anywhere in the key as it is written.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = chained.Plugin{Facts: spec.Facts{Args: true, MAC: true}, DataDir: dataDir, New: func() chained.Driver { return new(conf) }}

const (
	dataDir          = "/run/cni/tuning"                // the reference's
	defaultAllowlist = "/etc/cni/tuning/allowlist.conf" // the reference's
)

// keys are in the configuration and in args.cni, which takes precedence. Nil means absent.
type keys struct {
	Sysctl   sysctls `json:"sysctl"`
	MAC      string  `json:"mac"`
	Promisc  *bool   `json:"promisc"`
	MTU      *int    `json:"mtu"` // bytes; nil, 0: unchanged
	AllMulti *bool   `json:"allmulti"`
	TxQLen   *int    `json:"txQLen"` // packets
}

// conf is the whole configuration. [spec.Request.MAC] checks and chooses the MAC address; those
// here are only for its spelling.
type conf struct {
	chained.Defaults
	chained.Stored
	keys
	RuntimeConfig struct{ MAC string } `json:"runtimeConfig"`
	Args          struct{ CNI keys }   `json:"args"`

	// Set by Validate.
	sysctls []sysctl // sorted by path
	link    attributes
	mac     string // link.MAC as it was written
	off     bool   // promisc is false; only CHECK uses this
}

// Validate checks all keys. Errors of CNI_ARGS have code 4.
func (c *conf) Validate(r *spec.Request) error {
	mac, err := r.MAC()
	if err != nil {
		return err
	}
	own, args := &c.keys, &c.Args.CNI
	if c.sysctls, err = mergeSysctls(own.Sysctl, args.Sysctl, r.IfName); err != nil {
		return spec.Invalid(err, "sysctl")
	}
	c.link = attributes{MAC: mac.String(), AllMulti: first(args.AllMulti, own.AllMulti), TxQLen: first(args.TxQLen, own.TxQLen)}
	if mtu := first(args.MTU, own.MTU); mtu != nil {
		c.link.MTU = *mtu
	}
	if promisc := first(args.Promisc, own.Promisc); promisc != nil {
		c.off = !*promisc
		if *promisc {
			c.link.Promisc = promisc
		}
	}
	// like the reference's, the result has the address as it was written
	fromArgs, _ := r.Arg("MAC")
	c.mac = c.link.MAC
	for _, s := range []string{c.RuntimeConfig.MAC, args.MAC, fromArgs, own.MAC} {
		if s != "" {
			if strings.EqualFold(s, c.mac) {
				c.mac = s
			}
			break
		}
	}
	return c.link.validate()
}

// first returns the first pointer that is not nil: args.cni takes precedence over the plain key.
func first[T any](from ...*T) *T {
	for _, p := range from {
		if p != nil {
			return p
		}
	}
	return nil
}

// Needs requires the interface if any setting concerns it.
func (c *conf) Needs() chained.Need {
	if !c.link.empty() || c.off ||
		slices.ContainsFunc(c.sysctls, func(s sysctl) bool { return strings.Contains(s.written, "IFNAME") }) {
		return chained.NeedLink
	}
	return chained.NeedNS
}

// sets reports whether anything is to be set.
func (c *conf) sets() bool { return len(c.sysctls) > 0 || !c.link.empty() }

// Apply writes the sysctls and then the attributes of the link, all or none. The undo restores all
// former values. The result is prevResult with the new MAC address and MTU, which a link of the
// host with the same name does not get.
func (c *conf) Apply(op *chained.Op) error {
	if err := checkAllowed(defaultAllowlist, c.sysctls); err != nil {
		return err
	}
	before := c.link.current(op.Link)
	name, rec, err := c.remember(op, before)
	if err != nil {
		return err
	}
	change := c.link.change(op.Link)
	values, forms, err := writeSysctls(op.NS, c.sysctls)
	op.Undo("sysctls", func(context.Context) error { return op.NS.SetSysctls(values...) })
	if err != nil {
		return err
	}
	op.Undo("MAC guard of "+op.IfName, func(ctx context.Context) error { return moveGuardTo(ctx, op, before.MAC) })
	if err := moveGuardTo(op.Context(), op, change.MAC); err != nil {
		return err
	}
	if err := rec.rememberForms(op, name, forms); err != nil {
		return err
	}
	op.Undo("link "+op.IfName, func(context.Context) error { return restore(op, before) })
	err = op.Cont.Do(change.ops(op.Link.Index)...) // none without an interface
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EOPNOTSUPP) {
		return spec.Errorf(spec.CodeConfig, "%s does not take what is configured for it: %w", op.IfName, err)
	}
	if err != nil {
		return err
	}
	// Only in this namespace: the host may have a link of the same name.
	for i := range op.Prev.Interfaces {
		ifc := &op.Prev.Interfaces[i]
		if ifc.Name != op.IfName || isOtherNS(op.NS, ifc.Sandbox) {
			continue
		}
		if c.mac != "" {
			ifc.MAC = c.mac
		}
		if c.link.MTU != 0 {
			ifc.MTU = c.link.MTU
		}
	}
	return nil
}

// isOtherNS reports whether a sandbox of prevResult is a namespace other than ns: the host's, or
// one that can be opened. A runtime may have unmounted the path by which an earlier plugin knew ns.
func isOtherNS(ns *netns.NS, sandbox string) bool {
	if sandbox == "" || ns.IsAt(sandbox) {
		return sandbox == ""
	}
	_, err := netns.IDAt(sandbox)
	return err == nil
}

// restore gives the link its former attributes. It reads the link again, to send only what differs.
func restore(op *chained.Op, former attributes) error {
	if former.empty() {
		return nil
	}
	link, err := op.Cont.LinkAt(op.Link.Index)
	if err != nil {
		return err
	}
	return op.Cont.Do(former.change(link).ops(link.Index)...)
}

// Probe reports a configuration or a host with which every ADD would fail.
func (c *conf) Probe(op *chained.Op) error {
	if err := checkAllowed(defaultAllowlist, c.sysctls); err != nil {
		return spec.Errorf(spec.CodeNotReady, "%w", err)
	}
	if !c.sets() {
		return nil
	}
	return op.Dir.CheckWritable()
}

// Holds returns the settings as configured.
func (c *conf) Holds(*chained.Op) (all []spec.Holding) {
	for _, s := range c.sysctls {
		all = append(all, spec.Holding{Kind: "sysctl", Text: s.written + " = " + s.Value, Data: map[string]string{"key": s.Key, "value": s.Value}})
	}
	if !c.link.empty() {
		all = append(all, spec.Holding{Kind: "link", Text: c.link.text(c.mac), Data: c.link.held()})
	}
	return all
}
