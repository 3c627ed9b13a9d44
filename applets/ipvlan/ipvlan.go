// Package ipvlan is the CNI plugin ipvlan: sub-interface of a host link with the link's MAC address.
package ipvlan

import (
	"fmt"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "ipvlan",
	Conf:    plugin{},
	Summary: "sub-interface of a host link with the link's MAC address",
	Help: `
key              type    default  meaning
master           string  -        parent link; default: see below
mode             string  l2       l2, l3 or l3s
flag             string  bridge   bridge, private or vepa: whether containers reach each other
mtu              int     0        bytes, 68 to the master's; 0: the master's
linkInContainer  bool    false    the master is in the container's network namespace
ipam             object  -        IPAM plugin, named by its "type"; none: see below
dns              object  -        nameservers, domain, search, options; replaces ipam's

runtimeConfig.dns (capability dns) replaces dns.
Mode and flag belong to the master: those of the last ADD hold for all ipvlan on it.
In a chain, a missing master is the one interface of prevResult, and the addresses of prevResult
are used where there is no ipam. Otherwise a missing master is the link of the default route, and
ipam is required. IPv6 addresses are checked for duplicates, which takes a second or two.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = attach.Plugin{
	Facts: spec.Facts{Args: true, MAC: true}, Kind: "ipvlan", IPAM: attach.OrPrev,
	New: func() attach.Driver { return new(plugin) },
}

// plugin has the keys; Help describes each.
type plugin struct {
	attach.OnMaster
	Mode string `json:"mode"`
	Flag string `json:"flag"`

	kind rtnl.Ipvlan // of Mode and Flag; set by Validate
}

// Validate checks the keys and reads mode and flag.
func (p *plugin) Validate(r *spec.Request) (err error) {
	if p.kind.Mode, err = rtnl.ParseIpvlanMode(p.Mode); err != nil {
		return spec.AtKey("mode", err)
	}
	if p.kind.Flag, err = rtnl.ParseIpvlanFlag(p.Flag); err != nil {
		return spec.AtKey("flag", err)
	}
	return p.OnMaster.Validate(r)
}

// Link creates the link in the container. In a chain the link gets the addresses of prevResult, and
// the result omits the interfaces of prevResult. The MAC address is the master's and cannot be set.
func (p *plugin) Link(op *attach.Op) error {
	if addr, err := op.MAC(); err != nil || addr != nil {
		op.Warn("MAC address left out: an ipvlan has that of its master")
	}
	if err := p.chainedMaster(op.Prev); err != nil {
		return err
	}
	master, err := op.Master(&p.OnMaster)
	if err != nil {
		return err
	}
	if err := op.CreateOn(master, &p.OnMaster, p.kind, nil); err != nil {
		return fmt.Errorf("failed to create ipvlan: %w", err)
	}
	return nil
}

// chainedMaster takes the master from prevResult, if the configuration names none. Errors have code
// 7.
func (p *plugin) chainedMaster(prev *spec.Result) error {
	if p.Master != "" || prev == nil {
		return nil
	}
	if len(prev.Interfaces) != 1 {
		return spec.Errorf(spec.CodeConfig, "chained master failure: prevResult lacks a single named interface: set \"master\"")
	}
	p.Master = prev.Interfaces[0].Name
	return nil
}

// Check compares mode, flag and parent. Another ADD on the same master may have changed mode and
// flag.
func (p *plugin) Check(op *attach.Op) error {
	have, _ := op.Link.Data.(rtnl.Ipvlan)
	if have.Mode != p.kind.Mode {
		return attach.Lost("interface %s is an ipvlan in mode %s, not %s", op.IfName, have.Mode, p.kind.Mode)
	}
	if have.Flag != p.kind.Flag {
		return attach.Lost("interface %s is an ipvlan with flag %s, not %s", op.IfName, have.Flag, p.kind.Flag)
	}
	return op.CheckOn(&p.OnMaster)
}

// Probe looks for the configured master. Without one it checks nothing: in a chain ADD uses the
// master of prevResult, which STATUS does not have.
func (p *plugin) Probe(op *attach.Op) error {
	if p.Master == "" {
		return attach.ProbeKind(p.kind)
	}
	return op.ProbeMaster(&p.OnMaster, p.kind)
}
