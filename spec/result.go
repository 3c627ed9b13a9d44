package spec

import (
	"encoding/json"
	"net/netip"
)

// A Result is the newest version's result, the only one the program knows;
// older shapes exist at the edge alone ([ParseResult], [Result.Encode]).
// Members that no version of the specification knows are kept.
type Result struct {
	Interfaces []Interface
	IPs        []IP
	Routes     []Route
	DNS        DNS

	extra members
}

// An Interface is a link that a plugin made or found.
type Interface struct {
	Name       string
	MAC        string // as the plugin wrote it; empty: none
	MTU        int    // bytes; 0: not told
	Sandbox    string // path of the network namespace; empty: the host's
	SocketPath string
	PCIID      string

	extra members
}

// An IP is an address with its prefix length, host bits kept.
type IP struct {
	Address   netip.Prefix
	Gateway   netip.Addr // zero: none
	Interface *int       // index into Interfaces; nil: not told

	extra members
}

// A Route is a route inside the container.
type Route struct {
	Dst      netip.Prefix
	GW       netip.Addr // zero: the gateway of the family
	MTU      int        // bytes; 0: the link's
	AdvMSS   int        // bytes; 0: from the MTU
	Priority int        // the metric; 0: the kernel's choice
	Table    *int       // nil: main
	Scope    *int       // nil: from the gateway

	extra members
}

// DNS is what belongs into the container's resolv.conf.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// members are JSON members without a field of their own.
type members map[string]json.RawMessage

// ParseResult reads a result of any version; one without cniVersion is of version conf.
func ParseResult(b []byte, conf Version) (*Result, error) { panic("spec helper") }

// Encode writes the result in the shape of version v, indented by four spaces.
func (r *Result) Encode(v Version) ([]byte, error) { panic("spec helper") }

// Clone returns a deep copy.
func (r *Result) Clone() *Result { panic("spec helper") }
