// Package dummy is the CNI plugin dummy: link that drops what is sent to it.
package dummy

import (
	"fmt"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "dummy",
	Conf:    plugin{},
	Summary: "link that drops what is sent to it",
	Help: `
key   type    default  meaning
ipam  object  -        IPAM plugin, named by its "type"; required
dns   object  -        nameservers, domain, search, options; replaces ipam's
mac   string  random   address

runtimeConfig.dns (capability dns) replaces dns.
Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = attach.Plugin{
	Facts: spec.Facts{Args: true, MAC: true}, Kind: "dummy", IPAM: attach.Required,
	New: func() attach.Driver { return new(plugin) },
}

// plugin has no keys of its own.
type plugin struct{ attach.Defaults }

// Link creates the link in the container. Its segment has no other hosts, so addresses are not
// checked for duplicates.
func (*plugin) Link(op *attach.Op) error {
	addr, err := op.MAC()
	if err != nil {
		return err
	}
	if err := op.CreateContainerLink(op.Cont, rtnl.LinkSpec{Kind: rtnl.Dummy{}, MAC: addr}); err != nil {
		return fmt.Errorf("failed to create dummy: %w", err)
	}
	return nil
}

func (*plugin) Probe(*attach.Op) error { return attach.ProbeKind(rtnl.Dummy{}) }
