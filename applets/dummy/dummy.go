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
	Conf:    dummyConf{},
	Summary: "link that drops what is sent to it",
	Help: `
key   type    default  meaning
ipam  object  -        address plugin, named by its "type"; required
dns   object  -        nameservers, domain, search, options; instead of ipam's
mac   string  random   address

Before dns goes runtimeConfig.dns (capability dns).
Before mac go runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC, in this order.`,
	Verbs: attach.Verbs(attach.Interface[*dummyConf]{
		Kind: "dummy", IPAM: attach.Required, Create: createDummy, Verify: verifyDummy,
		Probe: func(context.Context, *spec.Request, *dummyConf) error { return attach.ProbeKind(rtnl.Dummy{}) },
	}),
}

// dummyConf has no keys of its own.
type dummyConf struct{}

// createDummy makes the link in the container, by the container's own socket.
// Nobody else is on it, so nothing is checked for duplicates.
func createDummy(_ context.Context, op *attach.Op, _ *dummyConf) error {
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	if err := op.CreateEnd(op.Cont, rtnl.LinkSpec{Kind: rtnl.Dummy{}, MAC: addr}); err != nil {
		return fmt.Errorf("failed to create dummy: %w", err)
	}
	return nil
}

// verifyDummy is left with the one thing that CHECK does not look at for all plugins.
func verifyDummy(_ context.Context, op *attach.Op, _ *dummyConf) error {
	if !op.Link.Up {
		return attach.Mismatch("dummy interface %s in %s is down", op.IfName, op.Call.NetNS)
	}
	return nil
}
