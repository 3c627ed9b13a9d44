// Package vlan is the CNI plugin vlan: 802.1Q sub-interface of a host link.
package vlan

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cnibox/applets/applet"
	"cnibox/applets/attach"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "vlan",
	Conf:    vlanConf{},
	Summary: "802.1Q sub-interface of a host link",
	Help: `
key              type    default   meaning
master           string  -         link to sit on; required
vlanId           int     0         0 to 4094; one container to a VLAN of a master
mtu              int     0         bytes, 68 to the master's; 0: the master's
linkInContainer  bool    false     the master is in the container's network namespace
ipam             object  -         address plugin, named by its "type"; required
dns              object  -         nameservers, domain, search, options; instead of ipam's
mac              string  master's  address

Before dns goes runtimeConfig.dns (capability dns).
Before mac go runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC, in this order.
IPv6 addresses are checked for duplicates on the segment, which takes a second or two.`,
	Verbs: attach.Verbs(attach.Interface[*vlanConf]{
		Kind: "vlan", IPAM: attach.Required, Validate: (*vlanConf).validate, Create: createVLAN, Verify: verifyVLAN,
		Probe: func(_ context.Context, _ *spec.Request, c *vlanConf) error {
			return attach.ProbeMaster(&c.OnMaster, rtnl.Vlan{ID: c.ID})
		},
	}),
}

// vlanConf are the keys; Help tells each. The MAC address is read by [spec.Request.MAC].
type vlanConf struct {
	attach.OnMaster
	ID int `json:"vlanId"` // 0 to 4094
}

// validate checks the keys; errors begin as the reference's do.
func (c *vlanConf) validate() error {
	switch {
	case c.Master == "":
		return spec.KeyErrorf("master", `"master" field is required. It specifies the host interface name to create the VLAN for`)
	case c.ID < 0 || c.ID > 4094:
		return spec.KeyErrorf("vlanId", `invalid VLAN ID %d: "vlanId" must be from 0 to 4094`, c.ID)
	}
	return c.OnMaster.Validate()
}

// createVLAN makes the link in the container. A master has each VLAN once, so the
// kernel's "file exists" may be about that.
func createVLAN(_ context.Context, op *attach.Op, c *vlanConf) error {
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	master, err := op.Master(&c.OnMaster)
	if err != nil {
		return err
	}
	err = op.CreateOn(master, &c.OnMaster, rtnl.Vlan{ID: c.ID}, addr)
	var told *spec.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrExist) && !errors.As(err, &told):
		return spec.Errorf(spec.CodeBusy, "failed to create vlan: VLAN %d of %s is in use: DEL the attachment that has it, or choose another \"vlanId\": %w", c.ID, c.Master, err)
	}
	return fmt.Errorf("failed to create vlan: %w", err)
}

// verifyVLAN compares the VLAN, and what the link sits on.
func verifyVLAN(_ context.Context, op *attach.Op, c *vlanConf) error {
	if have, _ := op.Link.Data.(rtnl.Vlan); have.ID != c.ID {
		return attach.Mismatch("interface %s has VLAN ID %d, not %d", op.IfName, have.ID, c.ID)
	}
	return op.CheckOn(&c.OnMaster)
}
