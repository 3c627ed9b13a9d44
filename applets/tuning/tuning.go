// Package tuning is the CNI plugin tuning: sysctls and link attributes of an interface that an earlier plugin made.
package tuning

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/applets/chained"
	"cnibox/applets/netns"
	"cnibox/applets/record"
	"cnibox/internal/undo"
	"cnibox/rtnl"
	"cnibox/spec"
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
dataDir   string  /run/cni/tuning  stores the former attributes until DEL

Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.
args.cni.sysctl, promisc, mtu, allmulti and txQLen replace the keys of the same name.

If /etc/cni/tuning/allowlist.conf exists, each sysctl must match a line of it, which are regular
expressions that may match anywhere in the key as it is written.`,
	Verbs: func() spec.Verbs {
		return spec.Verbs{Add: add, Check: check, Del: del, Get: get, Status: status, GC: gc, Records: record.At(dataDir), Args: true, Chained: true, Validate: spec.ValidateBy(readPlan), MAC: true}
	},
}

const (
	dataDir          = "/run/cni/tuning"                // the reference's
	defaultAllowlist = "/etc/cni/tuning/allowlist.conf" // the reference's
)

// keys are in the configuration and in args.cni, which takes precedence. Nil is absence.
type keys struct {
	Sysctl   sysctls `json:"sysctl"`
	MAC      string  `json:"mac"`
	Promisc  *bool   `json:"promisc"`
	MTU      *int    `json:"mtu"` // bytes; nil, 0: as it is
	AllMulti *bool   `json:"allmulti"`
	TxQLen   *int    `json:"txQLen"` // packets
}

// conf is the whole configuration. MAC addresses are checked and chosen by
// [spec.Request.MAC]; here they are for their spelling alone.
type conf struct {
	keys
	DataDir       string               `json:"dataDir"`
	RuntimeConfig struct{ MAC string } `json:"runtimeConfig"`
	Args          struct{ CNI keys }   `json:"args"`
}

// A plan is a checked configuration, for all verbs but DEL and GC.
type plan struct {
	sysctls []sysctl // sorted by path
	link    attributes
	mac     string // link.MAC as it was written
	off     bool   // promisc is false: only CHECK uses that
	dir     record.Dir
}

// readPlan decodes and checks the configuration. Errors have code 7, or 4 for CNI_ARGS.
func readPlan(r *spec.Request) (*plan, error) {
	var c conf
	if err := r.Decode(&c); err != nil {
		return nil, err
	}
	mac, err := r.MAC()
	if err != nil {
		return nil, err
	}
	p := &plan{}
	if p.dir, err = record.In(r.Call, c.DataDir, dataDir); err != nil {
		return nil, err
	}
	own, args := &c.keys, &c.Args.CNI
	if p.sysctls, err = mergeSysctls(own.Sysctl, args.Sysctl, r.IfName); err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	p.link = attributes{MAC: mac.String(), AllMulti: first(args.AllMulti, own.AllMulti), TxQLen: first(args.TxQLen, own.TxQLen)}
	if mtu := first(args.MTU, own.MTU); mtu != nil {
		p.link.MTU = *mtu
	}
	if promisc := first(args.Promisc, own.Promisc); promisc != nil {
		p.off = !*promisc
		if *promisc {
			p.link.Promisc = promisc
		}
	}
	// the result has the address as it was written, as in the reference
	fromArgs, _ := r.Arg("MAC")
	p.mac = p.link.MAC
	for _, s := range []string{c.RuntimeConfig.MAC, args.MAC, fromArgs, own.MAC} {
		if s != "" {
			if strings.EqualFold(s, p.mac) {
				p.mac = s
			}
			break
		}
	}
	if err := p.link.validate(); err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	return p, nil
}

// first returns the first pointer that is not nil.
// It puts args.cni before the plain key.
func first[T any](from ...*T) *T {
	for _, p := range from {
		if p != nil {
			return p
		}
	}
	return nil
}

// add writes the sysctls, then the attributes of the link, or neither.
// The result is prevResult with the new MAC address and MTU, but not for a link of the host with the
// same name.
func add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	p, err := readPlan(r)
	if err != nil {
		return nil, err
	}
	if err := checkAllowed(defaultAllowlist, p.sysctls); err != nil {
		return nil, err
	}
	if r.Prev == nil {
		return nil, spec.Errorf(spec.CodeConfig, "Required prevResult missing: tuning works on what earlier plugins of a list made")
	}
	t, err := openTuned(r, p, spec.CodeConfig)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	var undo undo.Stack
	if err := undo.Failed(ctx, t.apply(&undo, r, p)); err != nil {
		return nil, err
	}
	// Of the name, and in this namespace: the host may have an eth0 as well.
	for i := range r.Prev.Interfaces {
		in := &r.Prev.Interfaces[i]
		if in.Name != r.IfName || netns.Elsewhere(r.Call, t.NS, in.Sandbox) {
			continue
		}
		if p.mac != "" {
			in.MAC = p.mac
		}
		if p.link.MTU != 0 {
			in.MTU = p.link.MTU
		}
	}
	return r.Prev, nil
}

// A tuned is the opened interface: sysctls are set in the namespace, all else by the socket in it.
type tuned struct{ *chained.Interface }

// openTuned opens it; see [chained.Open] for none. A plan without attributes does not need the
// interface.
func openTuned(r *spec.Request, p *plan, none int) (tuned, error) {
	if p.aboutLink() {
		c, err := chained.Open(r, none)
		return tuned{c}, err
	}
	ns, err := netns.Open(r.Call)
	return tuned{&chained.Interface{NS: ns, Link: &rtnl.Link{}}}, err
}

// aboutLink reports whether the interface itself is needed.
func (p *plan) aboutLink() bool {
	return !p.link.empty() || p.off ||
		slices.ContainsFunc(p.sysctls, func(s sysctl) bool { return strings.Contains(s.written, "IFNAME") })
}

// apply makes all changes, each with its undo, which restores all former values. The record is
// written first, so that DEL has it if the process is killed in between.
func (t tuned) apply(undo *undo.Stack, r *spec.Request, p *plan) error {
	before := p.link.current(t.Link)
	if err := t.remember(undo, p, r.Attachment, before); err != nil {
		return err
	}
	change := p.link.change(t.Link)
	values, err := writeSysctls(t.NS, p.sysctls)
	undo.Add("sysctls", func(context.Context) error { return t.NS.SetSysctls(values...) })
	if err != nil {
		return err
	}
	undo.Add("link "+r.IfName, func(context.Context) error { return t.restore(before) })
	err = t.Conn.Do(change.ops(t.Link.Index)...) // none without an interface
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EOPNOTSUPP) {
		return spec.Errorf(spec.CodeConfig, "%s does not take what is configured for it: %w", r.IfName, err)
	}
	return err
}

// restore gives the link the attributes of was.
// The link is read again, since only what differs is sent.
func (t tuned) restore(was attributes) error {
	if was.empty() {
		return nil
	}
	link, err := t.Conn.LinkAt(t.Link.Index)
	if err != nil {
		return err
	}
	return t.Conn.Do(was.change(link).ops(link.Index)...)
}

// status reports a configuration or a host with which every ADD would fail. The code is 50.
func status(_ context.Context, r *spec.Request) error {
	p, err := readPlan(r)
	if err != nil {
		return err
	}
	if err := checkAllowed(defaultAllowlist, p.sysctls); err != nil {
		return spec.Errorf(spec.CodeNotReady, "%w", err)
	}
	if p.link.empty() {
		return nil
	}
	return p.dir.Ready()
}

// get returns prevResult, see [chained.Get].
func get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	dir, a := record.Configured(r, dataDir), r.Attachment
	_, _, err := readTuned(dir, record.Name(a), a)
	if err != nil {
		_, _, err = readTuned(dir, sharedName(a), a)
	}
	return chained.Get(ctx, r, err == nil, check)
}
