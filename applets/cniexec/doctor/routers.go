package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// checkRouters looks for links that would have an IPv6 default route if they did not ignore router advertisements,
// as they do with forwarding since something else than a plugin has switched it on.
func (d *Doctor) checkRouters(context.Context) {
	if !slices.ContainsFunc(d.examined, func(n *examined) bool {
		return n.resources.Routed && n.alive() && len(n.resources.Ranges) > 0 && n.serves(false)
	}) {
		return
	}
	links, err := inventory.AskHost(attach.IgnoringRouters)
	if err != nil {
		d.skip("router advertisements", err)
		return
	}
	d.ignoresRA = len(links) > 0
	for _, l := range links {
		d.add(Finding{Severity: lint.Risk, Check: "router advertisements", Where: l, Repair: setting("net/ipv6/conf/"+l+"/accept_ra", "2"), Code: spec.CodeHost,
			Message: "it ignores router advertisements, since it forwards with accept_ra 1, and this host has no IPv6 default route: IPv6 of containers reaches this host only"})
	}
}

// forwardingOn returns the commands that switch forwarding on, and the function that does it.
func forwardingOn(key string) (repair string, fix func(context.Context) error) {
	on, err := inventory.AskHost(func(host *rtnl.Conn) ([]netns.Sysctl, error) {
		on, _, err := attach.ForwardingOn(host, key)
		return on, err
	})
	if err != nil {
		on = []netns.Sysctl{{Key: key, Value: "1"}}
	}
	for i, s := range on {
		if i > 0 {
			repair += "\n"
		}
		repair += setting(s.Key, s.Value)
	}
	return repair, func(context.Context) error {
		if err := netns.Host().SetSysctls(on...); err != nil {
			return fmt.Errorf("forwarding: %w", err)
		}
		return nil
	}
}
