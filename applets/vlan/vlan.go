// Package vlan is the CNI plugin vlan: 802.1Q sub-interface of a host link.
package vlan

import (
	"errors"
	"fmt"
	"os"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "vlan",
	Conf:    plugin{},
	Summary: "802.1Q sub-interface of a host link",
	Help: `
key              type    default   meaning
master           string  -         parent link; required
vlanId           int     0         0 to 4094; each VLAN of a master is for one container
mtu              int     0         bytes, 68 to the master's; 0: the master's
linkInContainer  bool    false     the master is in the container's network namespace
ipam             object  -         IPAM plugin, named by its "type"; required
dns              object  -         nameservers, domain, search, options; replaces ipam's
mac              string  master's  address

runtimeConfig.dns (capability dns) replaces dns.
Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.
IPv6 addresses are checked for duplicates on the segment, which takes a second or two.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = attach.Plugin{
	Facts: spec.Facts{Args: true, MAC: true}, Kind: "vlan", IPAM: attach.Required,
	New: func() attach.Driver { return new(plugin) },
}

// plugin has the keys; Help describes each. [spec.Request.MAC] reads the MAC address.
type plugin struct {
	attach.OnMaster
	ID int `json:"vlanId"` // 0 to 4094
}

// Validate checks the keys; errors begin with the phrases of the reference.
func (p *plugin) Validate(r *spec.Request) error {
	switch {
	case p.Master == "":
		return spec.KeyErrorf("master", `"master" field is required. It specifies the host interface name to create the VLAN for`)
	case p.ID < 0 || p.ID > 4094:
		return spec.KeyErrorf("vlanId", `invalid VLAN ID %d: "vlanId" must be from 0 to 4094`, p.ID)
	}
	return p.OnMaster.Validate(r)
}

// Link creates the link in the container. A master can have each VLAN once, so EEXIST may concern
// the VLAN.
func (p *plugin) Link(op *attach.Op) error {
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	master, err := op.Master(&p.OnMaster)
	if err != nil {
		return err
	}
	err = op.CreateOn(master, &p.OnMaster, rtnl.Vlan{ID: p.ID}, addr)
	var explained *spec.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrExist) && !errors.As(err, &explained):
		return spec.Errorf(spec.CodeBusy, "failed to create vlan: VLAN %d of %s is in use: DEL the attachment that has it, or choose another \"vlanId\": %w", p.ID, p.Master, err)
	}
	return fmt.Errorf("failed to create vlan: %w", err)
}

// Check compares the VLAN and the parent.
func (p *plugin) Check(op *attach.Op) error {
	if have, _ := op.Link.Data.(rtnl.Vlan); have.ID != p.ID {
		return attach.Lost("interface %s has VLAN ID %d, not %d", op.IfName, have.ID, p.ID)
	}
	return op.CheckOn(&p.OnMaster)
}

// Probe looks for the master.
func (p *plugin) Probe(op *attach.Op) error { return op.ProbeMaster(&p.OnMaster, rtnl.Vlan{ID: p.ID}) }
