// Package dummy is the CNI plugin dummy: link that drops what is sent to it.
package dummy

import (
	"context"
	"fmt"

	"cnibox/applets/applet"
	"cnibox/applets/attach"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "dummy",
	Conf:    conf{},
	Summary: "link that drops what is sent to it",
	Help: `
key   type    default  meaning
ipam  object  -        address plugin, named by its "type"; required
dns   object  -        nameservers, domain, search, options; instead of ipam's
mac   string  random   address

Before dns goes runtimeConfig.dns (capability dns).
Before mac go runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC, in this order.`,
	Verbs: attach.Verbs(attach.Interface[*conf]{
		Kind: "dummy", IPAM: attach.Required, Create: create, Verify: verify,
		Probe: func(context.Context, *spec.Request, *conf) error { return attach.ProbeKind(rtnl.Dummy{}) },
	}),
}

// conf has no keys of its own.
type conf struct{}

// create makes the link in the container, by the container's own socket.
// Nobody else is on it, so nothing is checked for duplicates.
func create(_ context.Context, op *attach.Op, _ *conf) error {
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	if err := op.CreateContainerLink(op.Cont, rtnl.LinkSpec{Kind: rtnl.Dummy{}, MAC: addr}); err != nil {
		return fmt.Errorf("failed to create dummy: %w", err)
	}
	return nil
}

// verify is left with the one thing that CHECK does not look at for all plugins.
func verify(_ context.Context, op *attach.Op, _ *conf) error {
	if !op.Link.Up {
		return attach.Mismatch("dummy interface %s in %s is down", op.IfName, op.Call.NetNS)
	}
	return nil
}
