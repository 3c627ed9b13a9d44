package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// A Result is a result of the newest version. [ParseResult] reads older forms and [Result.Encode]
// writes them. Members that are in no version of the specification are kept.
//
// A plugin may change the prevResult that it received, and return it; a caller that keeps a result
// passes a [Result.Clone].
type Result struct {
	Interfaces []Interface
	IPs        []IP
	Routes     []Route
	DNS        DNS

	extra members
	odd   []string // see [Result.TakeOdd]
}

// An Interface is a link that a plugin made or found. Addresses refer to its index in the list, so
// the index must not change.
type Interface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac"`     // as the plugin wrote it; empty: none
	MTU     int    `json:"mtu"`     // bytes; 0: unknown
	Sandbox string `json:"sandbox"` // path of the network namespace; empty: the host's
	// Only for plugins that make sockets or pass devices through; no plugin of this program does.
	SocketPath string `json:"socketPath"`
	PCIID      string `json:"pciID"`

	extra members
}

// An IP is an address with its prefix length, host bits kept.
type IP struct {
	Address   netip.Prefix `json:"address"`
	Gateway   netip.Addr   `json:"gateway"`   // zero: none
	Interface *int         `json:"interface"` // index into Interfaces; nil: unknown

	extra members
}

// A Route is a route inside the container. Its table and scope are pointers since 0 is a valid
// value for both.
type Route struct {
	Dst      netip.Prefix `json:"dst"`
	GW       netip.Addr   `json:"gw"`       // zero: the gateway of the family
	MTU      int          `json:"mtu"`      // bytes; 0: the link's
	AdvMSS   int          `json:"advmss"`   // bytes; 0: from the MTU
	Priority int          `json:"priority"` // the metric; 0: the kernel's choice
	Table    *int         `json:"table"`    // nil: main
	Scope    *int         `json:"scope"`    // nil: from the gateway

	extra members
}

// DNS has the content of the container's resolv.conf. The lists are in the order of preference.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`

	extra members
}

// members are JSON members without a field of their own. They are copied from prevResult to the
// answer, since a plugin must pass on members that it does not change.
type members map[string]json.RawMessage

// Clone returns a deep copy; nil for nil. It shares the bytes of extra members, which are never
// changed.
func (r *Result) Clone() *Result {
	if r == nil {
		return nil
	}
	c := &Result{
		Interfaces: slices.Clone(r.Interfaces),
		IPs:        slices.Clone(r.IPs),
		Routes:     slices.Clone(r.Routes),
		DNS:        r.DNS.clone(),
		extra:      maps.Clone(r.extra),
	}
	for i := range c.Interfaces {
		c.Interfaces[i].extra = maps.Clone(c.Interfaces[i].extra)
	}
	for i := range c.IPs {
		ip := &c.IPs[i]
		ip.Interface, ip.extra = clonePtr(ip.Interface), maps.Clone(ip.extra)
	}
	for i := range c.Routes {
		rt := &c.Routes[i]
		rt.Table, rt.Scope, rt.extra = clonePtr(rt.Table), clonePtr(rt.Scope), maps.Clone(rt.extra)
	}
	return c
}

// Addresses returns the addresses of the interface with a name, for later plugins of a chain. It
// includes addresses without an index, or with an index outside the interfaces: not all plugins set
// it. The host may have an interface of the same name: sandbox selects the interfaces by the path
// of their network namespace, empty for the host's; nil: all.
func (r *Result) Addresses(ifName string, sandbox func(path string) bool) (ips []IP) {
	if r == nil {
		return nil
	}
	for _, ip := range r.IPs {
		if n := ip.Interface; n != nil && 0 <= *n && *n < len(r.Interfaces) {
			if i := r.Interfaces[*n]; i.Name != ifName || sandbox != nil && !sandbox(i.Sandbox) {
				continue
			}
		}
		ips = append(ips, ip)
	}
	return ips
}

// CheckGateways reports a gateway of another family than its address or destination, for those who
// use gateways: others pass such a one on. The error has code 7 and names the member.
func (r *Result) CheckGateways() error { return r.checkGateways("") }

// checkGateways is CheckGateways for a result in the value of a key.
func (r *Result) checkGateways(key string) (err error) {
	r.eachMixed(key, func(key, text string) {
		if err == nil {
			err = wrong(key, "%s", text)
		}
	})
	return err
}

// eachMixed calls fn for each gateway of another family than its address or destination.
func (r *Result) eachMixed(key string, fn func(key, text string)) {
	check := func(list string, i int, member string, gw netip.Addr, of netip.Prefix) {
		if gw.IsValid() && of.IsValid() && gw.Is4() != of.Addr().Is4() {
			fn(JoinKeys(key, ElementKey(list, i)+member), fmt.Sprintf("gateway %s is of another family than %s", gw, of))
		}
	}
	for i, ip := range r.IPs {
		check("ips", i, ".gateway", ip.Gateway, ip.Address)
	}
	for i, rt := range r.Routes {
		check("routes", i, ".gw", rt.GW, rt.Dst)
	}
}

// checkIndexes reports an address whose index is outside the list of interfaces.
func (r *Result) checkIndexes() (err error) {
	r.eachOutside(func(key, text string) {
		if err == nil {
			err = wrong(key, "%s", text)
		}
	})
	return err
}

// eachOutside calls fn for each index outside the list of interfaces.
func (r *Result) eachOutside(fn func(key, text string)) {
	for i, ip := range r.IPs {
		if n := ip.Interface; n != nil && *n >= len(r.Interfaces) {
			fn(ElementKey("ips", i)+".interface", fmt.Sprintf("%d is outside the list of %d interfaces", *n, len(r.Interfaces)))
		}
	}
}

// TakeOdd returns, once, what [ParseResult] has read otherwise than it was written, what
// [Result.Encode] leaves out, and what some plugins refuse: members with their path. It is for
// warnings where a result of others is passed on.
func (r *Result) TakeOdd() []string {
	odd := r.odd
	r.odd = nil
	return odd
}

// AnySandbox selects all network namespaces except the host's, for [Result.Addresses].
func AnySandbox(path string) bool { return path != "" }

// clone returns a deep copy.
func (d DNS) clone() DNS {
	d.Nameservers = slices.Clone(d.Nameservers)
	d.Search = slices.Clone(d.Search)
	d.Options = slices.Clone(d.Options)
	d.extra = maps.Clone(d.extra)
	return d
}

// Replaces reports whether d, as configured, replaces the DNS of an IPAM plugin: whether it has a
// member, even an empty list.
func (d DNS) Replaces() bool {
	return d.Nameservers != nil || d.Search != nil || d.Options != nil || !d.Empty()
}

// Empty reports whether no member of d is set.
func (d DNS) Empty() bool {
	return len(d.Nameservers)+len(d.Domain)+len(d.Search)+len(d.Options)+len(d.extra) == 0
}

// clonePtr returns a pointer to a copy; nil for nil.
func clonePtr(p *int) *int {
	if p == nil {
		return nil
	}
	return new(*p)
}
