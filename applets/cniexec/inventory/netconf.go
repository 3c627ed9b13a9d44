package inventory

import (
	"encoding/json"
	"slices"

	"cnibox/chain"
	"cnibox/ipam"
	"cnibox/spec"
)

// A Conf is a network's configuration: what the specification and its conventions say of it, whether or
// not it is valid, and what the plugins of this program say.
type Conf struct {
	CNIVersion string
	Plugins    []pluginConf
	chain.Use
}

// A pluginConf is that of one plugin.
type pluginConf struct {
	Type         string
	Capabilities map[string]bool
	IPAM         struct{ ResolvConf string }
}

// InterfacePlugin is the first plugin, which makes the interface.
func (c *Conf) InterfacePlugin() *pluginConf {
	if len(c.Plugins) == 0 {
		return new(pluginConf)
	}
	return &c.Plugins[0]
}

// pools are the range sets of which leases are stored, or none.
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
	if ipam.Complete(sets, spec.Newest) != nil { // which notes the gateways, that are not given out
		return nil
	}
	return sets
}

// publishes reports whether a plugin takes host ports: runtimes give theirs to every network. A
// configuration that cannot be read may have one.
func (c *Conf) publishes() bool {
	return len(c.Plugins) == 0 || slices.ContainsFunc(c.Plugins, func(p pluginConf) bool { return p.Capabilities[spec.CapPorts] })
}

// Types are those of the plugins, in their order.
func (c *Conf) Types() []string {
	types := []string{}
	for _, p := range c.Plugins {
		types = append(types, p.Type)
	}
	return types
}

// readConf reads a list or a single configuration. Keys of the wrong type are left out: the
// plugins report them.
func readConf(doc []byte) *Conf {
	var list struct {
		CNIVersion string
		Plugins    []json.RawMessage
	}
	_ = json.Unmarshal(doc, &list)
	if list.Plugins == nil {
		list.Plugins = []json.RawMessage{doc}
	}
	c := &Conf{CNIVersion: list.CNIVersion}
	for _, raw := range list.Plugins[:min(len(list.Plugins), chain.MaxPlugins)] {
		var p pluginConf
		if _ = json.Unmarshal(raw, &p); p.Type != "" {
			c.Plugins = append(c.Plugins, p)
		}
	}
	return c
}
