package attach

import (
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A Driver implements the steps of one interface plugin, for one verb. Its exported fields are the
// keys of the configuration. Embed [Defaults] and write the methods in which the plugin differs. A
// step of ADD registers the undo of each change with [Op.Undo], before the change or right after
// it.
type Driver interface {
	Validate(*spec.Request) error // checks the configuration alone; fills in defaults; errors without a code have code 7
	Resources() spec.Resources    // of a valid configuration; without Ranges and Veth
	Link(*Op) error               // ADD: creates op.Link, down, in the container, and op.Bridge and op.Veth on the host
	Gateways(*Op) error           // ADD, GET: completes gateways and routes of op.Result; changes nothing in the kernel
	Routes(*Op) []rtnl.Route      // ADD, RESTORE: replace the kernel's routes to the networks of the addresses; nil: keep those
	Host(*Op) error               // ADD, RESTORE: configures the host's side; does not repeat what exists
	Check(*Op) error              // CHECK beyond kind, addresses, routes, pair and forwarding; the code is 102
	Found(*Op) error              // GET: checks that op.Link is the attachment's, beyond kind and pair; the code is 3
	Remove(*Op) error             // DEL: deletes the link; op.NS may be nil, and the configuration empty
	Release(*Op) error            // DEL: releases everything else, concurrently with Remove
	Probe(*Op) error              // STATUS beyond that of the IPAM plugin
	Collect(*Op) error            // GC beyond links and the IPAM plugin
}

// Defaults implements the steps of a plugin that adds nothing to the flow.
type Defaults struct{}

// Validate accepts any configuration.
func (Defaults) Validate(*spec.Request) error { return nil }

// Resources returns those of a link whose segment has no other hosts.
func (Defaults) Resources() spec.Resources { return spec.Resources{} }

// Gateways completes nothing.
func (Defaults) Gateways(*Op) error { return nil }

// Routes keeps the kernel's routes.
func (Defaults) Routes(*Op) []rtnl.Route { return nil }

// Host changes nothing on the host.
func (Defaults) Host(*Op) error { return nil }

// Check adds nothing to the checks of the flow.
func (Defaults) Check(*Op) error { return nil }

// Found accepts the link as the attachment's.
func (Defaults) Found(*Op) error { return nil }

// Remove deletes the pair, or the container's link by its name.
func (Defaults) Remove(op *Op) error { return op.removeLink() }

// Release deletes what the attachment owns in the rule set.
func (Defaults) Release(op *Op) error {
	if op.plugin.Rules == nil {
		return nil
	}
	return op.ReleaseRules(nil)
}

// Probe reports no error.
func (Defaults) Probe(*Op) error { return nil }

// Collect deletes what stale attachments own in the rule set.
func (Defaults) Collect(op *Op) error { return op.collectRules() }

// A Network is a Driver whose plugin has PREPARE: it creates what the attachments of a network
// share on the host. See [spec.Plugin]. The Op has no container.
type Network interface {
	Prepare(*Op) error
	RemoveNetwork(*Op) error
}

// An IPAMNeed says whether a plugin works with an IPAM plugin.
type IPAMNeed int

// The zero value leaves the choice to the configuration.
const (
	Optional IPAMNeed = iota
	Required
	Never
	OrPrev // required, unless prevResult has addresses, which the link then gets
)

// A Plugin describes an interface plugin to the flow. It is data: nothing runs at start.
type Plugin struct {
	Facts   spec.Facts // with MAC if a step uses [spec.Request.MAC]; the flow adds what holds for all interface plugins
	Kind    string     // of the container's link, as in IFLA_INFO_KIND; empty: any
	IPAM    IPAMNeed
	Veth    bool       // the link is half of a pair: the flow finds, checks, describes and deletes the pair
	Moved   bool       // the link is a host device with an alias of its own: ADD does not label it
	Rules   []nft.Kind // the kinds it may own in the rule set; DEL, GC and a failed ADD release them
	DataDir record.Dir // the default directory of its records; empty: the plugin has none
	New     func() Driver
}

// Spec returns the plugin's facts and verbs.
func (p *Plugin) Spec() spec.Plugin {
	v := spec.Plugin{
		Facts: p.Facts, Add: p.add, Check: p.check, Del: p.del, Get: p.get, Status: p.status, GC: p.gc,
		Validate: p.validate, Holds: p.holds, Restore: p.restore}
	v.Interface, v.OpensNetNS = true, true
	if p.DataDir != "" {
		v.Records = record.DirFunc(p.DataDir)
	}
	if _, ok := p.New().(Network); ok {
		v.Prepare, v.RemoveNetwork = p.prepare, p.removeNetwork
	}
	return v
}
