package inventory

import (
	"cmp"
	"encoding/json"
	"slices"

	"cnibox/chain"
	"cnibox/ipam"
	"cnibox/spec"
)

// A Conf are the keys of a network's configuration that are looked at here; a plugin's own
// decoding has them all. They are read whether or not the configuration is valid, and for external
// plugins too.
type Conf struct {
	CNIVersion string
	Plugins    []pluginConf
}

// A pluginConf is that of one plugin.
type pluginConf struct {
	Type         string
	Capabilities map[string]bool
	Bridge       string
	Master       string
	IPMasq       bool
	Backend      string // of firewall
	IPAM         ipamConf
}

// An ipamConf is what is read of the key "ipam".
type ipamConf struct {
	Type       string
	ResolvConf string
	ipam.StoreConf
	ipam.RangeConf
}

// InterfacePlugin is the first plugin, which makes the interface.
func (c *Conf) InterfacePlugin() *pluginConf {
	if len(c.Plugins) == 0 {
		return new(pluginConf)
	}
	return &c.Plugins[0]
}

// Bridge is the name of the network's bridge; empty: it has none.
func (c *Conf) Bridge() string {
	if p := c.InterfacePlugin(); p.Type == "bridge" {
		return cmp.Or(p.Bridge, "cni0")
	}
	return ""
}

// Leases returns the data directory of the leases of a network with this configuration; empty:
// host-local has none of it.
func (c *Conf) Leases(stateDir, network string) (dir string) {
	p := &c.InterfacePlugin().IPAM
	if p.Type != "host-local" {
		return ""
	}
	dir, _ = p.Dir(stateDir, network)
	return dir
}

// pools are the range sets of host-local; nil: none, or none that are valid.
func (c *Conf) pools() (sets []ipam.RangeSet) {
	p := &c.InterfacePlugin().IPAM
	if p.Type != "host-local" {
		return nil
	}
	if sets = p.Sets(); ipam.Complete(sets, spec.Newest) != nil {
		return nil
	}
	return sets
}

// Zoned reports whether the firewall plugin puts the addresses into a zone of firewalld.
func (c *Conf) Zoned() bool {
	return slices.ContainsFunc(c.Plugins, func(p pluginConf) bool { return p.Type == "firewall" && p.Backend == "firewalld" })
}

// publishes reports whether a plugin takes host ports: runtimes give theirs to every network. A
// configuration that cannot be read may have one.
func (c *Conf) publishes() bool {
	return len(c.Plugins) == 0 || slices.ContainsFunc(c.Plugins, func(p pluginConf) bool { return p.Capabilities[CapPorts] })
}

// Types are those of the plugins, in their order.
func (c *Conf) Types() []string {
	types := []string{}
	for _, p := range c.Plugins {
		types = append(types, p.Type)
	}
	return types
}

// ReadConf reads a list or a single configuration. Keys of the wrong type are left out: the
// plugins report them.
func ReadConf(doc []byte) *Conf {
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
