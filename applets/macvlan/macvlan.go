// Package macvlan is the CNI plugin macvlan: sub-interface of a host link with a MAC address of its own.
package macvlan

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/applets/attach"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "macvlan",
	Conf:    conf{},
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
	Verbs: func() spec.Verbs {
		return attach.Verbs(attach.Interface[*conf]{
			Kind: "macvlan", Shared: (*conf).IsShared, Validate: (*conf).validate, Create: create, Verify: verify,
			Probe: func(_ context.Context, _ *spec.Request, c *conf) error {
				return attach.ProbeMaster(&c.OnMaster, c.kind)
			},
		})
	},
}

// conf are the keys; Help describes each. The MAC address is read by [spec.Request.MAC].
type conf struct {
	attach.OnMaster
	Mode       string `json:"mode"`
	BCQueueLen uint32 `json:"bcqueuelen"` // packets; 0: the kernel's choice

	kind rtnl.Macvlan // of Mode and BCQueueLen; set by validate
}

// validate checks the keys and reads the mode.
func (c *conf) validate() (err error) {
	c.kind.BCQueueLen = c.BCQueueLen
	if c.kind.Mode, err = rtnl.ParseMacvlanMode(c.Mode); err != nil {
		return spec.KeyErrorf("mode", `%w: "mode" is bridge, private, vepa or passthru`, err)
	}
	return c.OnMaster.Validate()
}

// create creates the link in the container. For a second macvlan beside one of mode passthru the
// kernel returns EINVAL.
func create(_ context.Context, op *attach.Op, c *conf) error {
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	master, err := op.Master(&c.OnMaster)
	if err != nil {
		return err
	}
	err = op.CreateOn(master, &c.OnMaster, c.kind, addr)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		return spec.Errorf(spec.CodeBusy, "failed to create macvlan: %s is no Ethernet link, or a macvlan in mode passthru is in the way: %w", c.Master, err)
	}
	return fmt.Errorf("failed to create macvlan: %w", err)
}

// verify compares mode, queue and parent. Kernels before 5.11 do not report the queue.
func verify(_ context.Context, op *attach.Op, c *conf) error {
	have, _ := op.Link.Data.(rtnl.Macvlan)
	if have.Mode != c.kind.Mode {
		return attach.Mismatch("interface %s is a macvlan in mode %s, not %s", op.IfName, have.Mode, c.kind.Mode)
	}
	if c.BCQueueLen != 0 && have.BCQueueLen != 0 && have.BCQueueLen != c.BCQueueLen {
		return attach.Mismatch("interface %s has bcqueuelen %d, not %d", op.IfName, have.BCQueueLen, c.BCQueueLen)
	}
	return op.CheckOn(&c.OnMaster)
}
