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
ipam  object  -        IPAM plugin, named by its "type"; required
dns   object  -        nameservers, domain, search, options; replaces ipam's
mac   string  random   address

runtimeConfig.dns (capability dns) replaces dns.
Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.`,
	Verbs: func() spec.Verbs {
		return attach.Verbs(attach.Interface[*conf]{
			Kind: "dummy", IPAM: attach.Required, Create: create,
			Probe: func(context.Context, *spec.Request, *conf) error { return attach.ProbeKind(rtnl.Dummy{}) },
		})
	},
}

// conf has no keys of its own.
type conf struct{}

// create creates the link in the container. No other host is on it, so its addresses are not
// checked for duplicates.
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
