package attach

import (
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A Driver is what one interface plugin adds to the flow, for one verb. Its exported fields are the
// keys of the configuration. Embed [Defaults] and write the methods in which the plugin differs. A
// step of ADD registers what it does with [Op.Undo], first or at once.
type Driver interface {
	Validate() error         // the configuration alone; fills in defaults; errors have code 7
	Facts() Facts            // of a valid configuration
	Link(*Op) error          // ADD: makes op.Link, down, in the container, and op.Bridge and op.Veth on the host
	Gateways(*Op) error      // ADD, GET: completes gateways and routes of op.Result; sets nothing
	Routes(*Op) []rtnl.Route // ADD, RESTORE: in place of the kernel's routes to the networks of the addresses; nil: those
	Host(*Op) error          // ADD, RESTORE: makes the host's side as it should be; what is there stays
	Check(*Op) error         // CHECK beyond kind, addresses, routes, pair and forwarding
	Found(*Op) error         // GET: whether op.Link is the attachment's, beyond kind and pair; the code is 3
	Remove(*Op) error        // DEL of the link; op.NS may be nil, and the configuration empty
	Release(*Op) error       // DEL of the rest, at the same time
	Probe(*Op) error         // STATUS beyond the IPAM plugin's
	Collect(*Op) error       // GC beyond links and the IPAM plugin's
}

// Facts are what the flow asks of a configuration.
type Facts struct {
	Link     string // see [spec.Resources]
	Parent   string // the same
	Stacked  bool   // the link is made on one of the host: Parent, or if that is empty the link of the default route
	Routed   bool   // the same; the host forwards then
	Shared   bool   // other hosts are on the link's segment: addresses are checked for duplicates
	Down     bool   // ADD leaves the link down, without addresses
	NoNetdev bool   // the device has no netdev: there is no op.Link, and none is configured or checked
}

// Defaults are the steps of a plugin that has nothing of its own to do.
type Defaults struct{}

// Validate accepts any configuration.
func (Defaults) Validate() error { return nil }

// Facts are those of a link that no other host is on.
func (Defaults) Facts() Facts { return Facts{} }

// Gateways completes nothing.
func (Defaults) Gateways(*Op) error { return nil }

// Routes leaves them to the kernel.
func (Defaults) Routes(*Op) []rtnl.Route { return nil }

// Host changes nothing on the host.
func (Defaults) Host(*Op) error { return nil }

// Check looks at no more than the flow does.
func (Defaults) Check(*Op) error { return nil }

// Found takes the link for the attachment's.
func (Defaults) Found(*Op) error { return nil }

// Remove deletes the pair, or the container's link by its name.
func (Defaults) Remove(op *Op) error { return op.removeLink() }

// Release deletes what the attachment owns in the rule set.
func (Defaults) Release(op *Op) error { return op.releaseRules(op.ctx) }

// Probe finds nothing.
func (Defaults) Probe(*Op) error { return nil }

// Collect deletes what stale attachments own in the rule set.
func (Defaults) Collect(op *Op) error { return op.collectRules() }

// A Network is a Driver whose ADD also makes what the attachments of a network share on the host; see
// [spec.Verbs] for both. The Op has no container.
type Network interface {
	Prepare(*Op) error
	RemoveNetwork(*Op) error
}

// Need is whether a plugin works with an IPAM plugin.
type Need int

// The zero value leaves it to the configuration.
const (
	Optional Need = iota
	Required
	Never
	Chained // required, unless prevResult has addresses, which then are the link's
)

// A Plugin describes an interface plugin to the flow. It is data: nothing runs at start.
type Plugin struct {
	Kind  string // of the container's link, as in IFLA_INFO_KIND; empty: any
	IPAM  Need
	Veth  bool       // a pair: found again, checked, described and deleted by the flow
	Moved bool       // the link is one of the host's with an alias of its own: ADD does not label it
	NoMAC bool       // no step asks for [spec.Request.MAC], so CNI_ARGS are the IPAM plugin's alone
	Rules []nft.Kind // what it may own in the rule set; DEL, GC and a failed ADD release it
	New   func() Driver
}

// Verbs are the plugin's.
func (p *Plugin) Verbs() spec.Verbs {
	v := spec.Verbs{
		Add: p.add, Check: p.check, Del: p.del, Get: p.get, Status: p.status, GC: p.gc, Validate: p.validate,
		Restore: p.restore, Args: !p.NoMAC, MAC: !p.NoMAC, OpensNetNS: true, Interface: true, Holds: p.holds, Veth: p.Veth}
	if _, ok := p.New().(Network); ok {
		v.Prepare, v.RemoveNetwork = p.prepare, p.removeNetwork
	}
	return v
}
