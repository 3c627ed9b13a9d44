package inventory

import (
	"encoding/json"
	"slices"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// A Conf is a network's configuration, valid or not: what it means by the specification and its
// conventions, and what the built-in plugins report about it.
type Conf struct {
	CNIVersion string
	Plugins    []pluginConf
	chain.Use
}

// A pluginConf is the configuration of one plugin.
type pluginConf struct {
	Type         string
	Capabilities map[string]bool
	IPAM         struct{ Type, ResolvConf string }
	MTU          int // bytes; 0: not configured
}

// InterfacePlugin returns the first plugin, which creates the interface.
func (c *Conf) InterfacePlugin() *pluginConf {
	if len(c.Plugins) == 0 {
		return new(pluginConf)
	}
	return &c.Plugins[0]
}

// pools returns the range sets whose leases are stored, or none.
func (c *Conf) pools() (sets []ipam.RangeSet) {
	if c.Leases() == "" {
		return nil
	}
	last := -1
	for _, r := range c.Ranges {
		if r.Set != last {
			sets = append(sets, nil)
		}
		last = r.Set
		set := &sets[len(sets)-1]
		*set = append(*set, ipam.Range{Subnet: r.Subnet, Start: r.First, End: r.Last, Gateway: r.Gateway})
	}
	if ipam.Complete(sets, spec.Newest) != nil { // it adds the gateways, which are not leased
		return nil
	}
	return sets
}

// publishes reports whether a plugin accepts host ports: runtimes pass theirs to every network. An
// unreadable configuration may have such a plugin.
func (c *Conf) publishes() bool {
	return len(c.Plugins) == 0 || slices.ContainsFunc(c.Plugins, func(p pluginConf) bool { return p.Capabilities[spec.CapPorts] })
}

// Types returns the types of the plugins, in their order.
func (c *Conf) Types() []string {
	types := []string{}
	for _, p := range c.Plugins {
		types = append(types, p.Type)
	}
	return types
}

// readConf reads a list or a single configuration. It omits keys of the wrong type: the plugins
// report them.
func readConf(doc []byte) *Conf {
	var list struct{ CNIVersion string }
	_ = json.Unmarshal(doc, &list)
	c := &Conf{CNIVersion: list.CNIVersion}
	for _, raw := range chain.Confs(doc) {
		var p pluginConf
		if _ = json.Unmarshal(raw, &p); p.Type != "" {
			c.Plugins = append(c.Plugins, p)
		}
	}
	return c
}
