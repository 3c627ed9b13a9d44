// Package tap is the CNI plugin tap: tap device in the container, for a virtual machine.
package tap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "tap",
	Conf:    plugin{},
	Summary: "tap device in the container, for a virtual machine",
	Help: `
key             type    default    meaning
multiQueue      bool    false      several queues may be open at a time
mtu             int     1500       bytes, 68 to 65521
mac             string  random     address of the device
owner           int     -          user ID that may open it
group           int     -          group ID that may open it
bridge          string  -          bridge in the container that it becomes a port of
selinuxContext  string  -          label of the device's queues, as user:role:type:level; without
                                   SELinux an error
ipam            object  -          IPAM plugin, named by its "type"; none: layer 2 only
dns             object  -          nameservers, domain, search, options; replaces ipam's

runtimeConfig.dns (capability dns) replaces dns.
Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.

The device is persistent until DEL. For selinuxContext the plugin re-execs itself under that
label; nothing else starts a program.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
	Again:  reexecMain,
}

var flow = attach.Plugin{
	Facts: spec.Facts{Args: true, MAC: true}, Kind: "tun",
	New: func() attach.Driver { return new(plugin) },
}

// plugin has the keys; Help describes each. Owner and Group are nil if not set.
type plugin struct {
	attach.Defaults
	MultiQueue     bool    `json:"multiQueue"`
	MTU            int     `json:"mtu"` // bytes; 0: the kernel's choice
	Owner          *uint32 `json:"owner"`
	Group          *uint32 `json:"group"`
	SELinuxContext string  `json:"selinuxContext"`
	Bridge         string  `json:"bridge"` // in the container; empty: none
}

// Validate checks the keys. For the kernel the ID -1 means no owner or group.
func (p *plugin) Validate(*spec.Request) error {
	if p.Bridge != "" {
		if err := spec.CheckIfName(p.Bridge); err != nil {
			return spec.KeyErrorf("bridge", `"bridge" %q: %s`, p.Bridge, err.Error()) // not wrapped: its code is that of CNI_IFNAME
		}
	}
	switch {
	case p.MTU != 0 && (p.MTU < 68 || p.MTU > 65521): // 65535 less the Ethernet header
		return spec.KeyErrorf("mtu", `"mtu" %d is not within 68 to 65521`, p.MTU)
	case p.Owner != nil && *p.Owner == math.MaxUint32, p.Group != nil && *p.Group == math.MaxUint32:
		return spec.KeyErrorf("owner", `"owner" and "group" must be below %d`, uint32(math.MaxUint32))
	case strings.ContainsAny(p.SELinuxContext, "\x00\n"):
		return spec.KeyErrorf("selinuxContext", `"selinuxContext" %q is not a label`, p.SELinuxContext)
	}
	return nil
}

// labelled checks that the host has SELinux labels, if the device is to have one. The code is 7.
func (p *plugin) labelled() error {
	if p.SELinuxContext == "" {
		return nil
	}
	if err := program.SELinux(); err != nil {
		return spec.Errorf(spec.CodeConfig, `"selinuxContext": %w`, err).AtKey("selinuxContext")
	}
	return nil
}

// Link creates the device with its final name, and sets in one message what the ioctls cannot set.
func (p *plugin) Link(op *attach.Op) error {
	if err := p.labelled(); err != nil {
		return err
	}
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	if addr == nil {
		addr = attach.RandomMAC()
	}
	ch := rtnl.LinkChange{MAC: addr}
	if p.MTU != 0 {
		ch.MTU = &p.MTU
	}
	if p.Bridge != "" {
		br, err := p.findBridge(op)
		if err != nil {
			return err
		}
		ch.Master = &br.Index
	}
	if err := p.createDevice(op); err != nil {
		return err
	}
	op.Undo("link "+op.IfName, func(context.Context) error { return op.Cont.DelLink(op.IfName) })
	if op.Link, err = op.Cont.Link(op.IfName); err != nil {
		return err
	}
	if err := op.Cont.Do(rtnl.ChangeLink(op.Link.Index, ch)); err != nil {
		return err
	}
	op.Link.MAC = addr
	if p.MTU != 0 {
		op.Link.MTU = p.MTU
	}
	return nil
}

// findBridge finds the bridge, which is in the container.
func (p *plugin) findBridge(op *attach.Op) (*rtnl.Link, error) {
	br, err := op.Cont.Link(p.Bridge)
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, `failed to lookup "bridge" %q in %s: %w`, p.Bridge, op.Call.NetNS, err)
	}
	if br.Kind != "bridge" {
		return nil, spec.Errorf(spec.CodeConfig, `%q in %s is not a bridge: it is of kind %q`, p.Bridge, op.Call.NetNS, br.Kind)
	}
	return br, nil
}

// createDevice creates the device in the container, in this process or in a process with the
// SELinux label. In both a name in use is an error.
func (p *plugin) createDevice(op *attach.Op) error {
	var err error
	if p.SELinuxContext == "" {
		err = op.NS.Do(func() error {
			return rtnl.CreateTap(op.IfName, rtnl.Tap{MultiQueue: p.MultiQueue, Owner: p.Owner, Group: p.Group})
		})
	} else if _, err = op.Cont.Link(op.IfName); err == nil {
		err = os.ErrExist
	} else if errors.Is(err, os.ErrNotExist) {
		err = op.NS.Do(func() error { return program.RunLabelled(op.Context(), p.SELinuxContext, p.reexec(op.IfName)...) })
	}
	if errors.Is(err, os.ErrExist) {
		return op.ExplainExists(err)
	}
	if err != nil {
		return fmt.Errorf("failed to create tap: %w", err)
	}
	return nil
}

// reexec returns the arguments for reexecMain; an ID of "-" is not set.
func (p *plugin) reexec(name string) []string {
	id := func(n *uint32) string {
		if n == nil {
			return "-"
		}
		return strconv.FormatUint(uint64(*n), 10)
	}
	return []string{"tap", "create", name, strconv.FormatBool(p.MultiQueue), id(p.Owner), id(p.Group)}
}

// reexecMain is the main of the process that the plugin starts in the container's namespace, with
// the arguments of createDevice.
func reexecMain(p applet.Process) int {
	err := errors.New("usage: tap create NAME MULTIQUEUE OWNER GROUP")
	if len(p.Args) == 5 {
		t := rtnl.Tap{MultiQueue: p.Args[2] == "true"}
		for i, to := range []**uint32{&t.Owner, &t.Group} {
			if id, err := strconv.ParseUint(p.Args[3+i], 10, 32); err == nil {
				*to = new(uint32(id))
			}
		}
		err = rtnl.CreateTap(p.Args[1], t)
	}
	if err != nil {
		p.Complain("tap", "%v", err)
		return 1
	}
	return 0
}

// Check checks the bridge of the device. It ignores MTU and MAC address, which tuning may have
// changed.
func (p *plugin) Check(op *attach.Op) error {
	if p.Bridge == "" {
		return nil
	}
	br, err := op.Cont.Link(p.Bridge)
	if err != nil {
		return attach.Lost("bridge in %s: %w", op.Call.NetNS, err)
	}
	if op.Link.Master != br.Index {
		return attach.Lost("%s is not a port of bridge %s in %s", op.IfName, p.Bridge, op.Call.NetNS)
	}
	return nil
}

// Probe reports whether tap devices can be created on this host.
func (p *plugin) Probe(*attach.Op) error {
	return cmp.Or(p.labelled(), rtnl.ProbeTap())
}
