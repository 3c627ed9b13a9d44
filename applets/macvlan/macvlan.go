// Package macvlan is the CNI plugin macvlan: sub-interface of a host link with a MAC address of its own.
package macvlan

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "macvlan",
	Conf:    plugin{},
	Summary: "sub-interface of a host link with a MAC address of its own",
	Help: `
key              type    default  meaning
master           string  -        parent link; default: that of the default route
mode             string  bridge   bridge, private, vepa or passthru
mtu              int     0        bytes, 68 to the master's; 0: the master's
bcqueuelen       int     0        queued broadcasts of the master, packets; 0: the kernel's, 1000
linkInContainer  bool    false    the master is in the container's network namespace
ipam             object  -        IPAM plugin, named by its "type"; none: layer 2 only
dns              object  -        nameservers, domain, search, options; replaces ipam's
mac              string  random   address; with passthru the master gets it too, until DEL

runtimeConfig.dns (capability dns) replaces dns.
Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.
With passthru a master has one container, which without mac has the master's address.
IPv6 addresses are checked for duplicates on the segment, which takes a second or two.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = attach.Plugin{
	Facts: spec.Facts{Args: true, MAC: true}, Kind: "macvlan",
	New: func() attach.Driver { return new(plugin) },
}

// plugin has the keys; Help describes each. [spec.Request.MAC] reads the MAC address.
type plugin struct {
	attach.OnMaster
	Mode       string `json:"mode"`
	BCQueueLen uint32 `json:"bcqueuelen"` // packets; 0: the kernel's choice

	kind rtnl.Macvlan // from Mode and BCQueueLen; set by Validate
}

// Validate checks the keys and reads the mode.
func (p *plugin) Validate(r *spec.Request) (err error) {
	p.kind.BCQueueLen = p.BCQueueLen
	if p.kind.Mode, err = rtnl.ParseMacvlanMode(p.Mode); err != nil {
		return spec.KeyErrorf("mode", `%w: "mode" is bridge, private, vepa or passthru`, err)
	}
	return p.OnMaster.Validate(r)
}

// Link creates the link in the container. If another macvlan of the master has mode passthru, the
// kernel returns EINVAL.
func (p *plugin) Link(op *attach.Op) error {
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	master, err := op.Master(&p.OnMaster)
	if err != nil {
		return err
	}
	err = op.CreateOn(master, &p.OnMaster, p.kind, addr)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		return spec.Errorf(spec.CodeBusy, "failed to create macvlan: %s is not an Ethernet link, or a macvlan in mode passthru is in the way: %w", p.Master, err)
	}
	return fmt.Errorf("failed to create macvlan: %w", err)
}

// Check compares mode, queue and parent. Kernels before 5.11 do not report the queue.
func (p *plugin) Check(op *attach.Op) error {
	have, _ := op.Link.Data.(rtnl.Macvlan)
	if have.Mode != p.kind.Mode {
		return attach.Lost("interface %s is a macvlan in mode %s, not %s", op.IfName, have.Mode, p.kind.Mode)
	}
	if p.BCQueueLen != 0 && have.BCQueueLen != 0 && have.BCQueueLen != p.BCQueueLen {
		return attach.Lost("interface %s has bcqueuelen %d, not %d", op.IfName, have.BCQueueLen, p.BCQueueLen)
	}
	return op.CheckOn(&p.OnMaster)
}

// Probe looks for the master.
func (p *plugin) Probe(op *attach.Op) error { return op.ProbeMaster(&p.OnMaster, p.kind) }
