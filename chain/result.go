package chain

import (
	"encoding/json"
	"net/netip"

	"github.com/cnibox/cnibox/spec"
)

// BriefResult returns the interfaces, addresses and DNS of the entry's result, which is much faster than
// all of it; empty if it cannot be read.
func (e *Entry) BriefResult() *spec.Result {
	var r struct {
		Interfaces []struct {
			Name, Mac, Sandbox string
			MTU                int
		}
		IPs []struct {
			Address   netip.Prefix
			Gateway   netip.Addr
			Interface *int
		}
		DNS      spec.DNS
		IP4, IP6 json.RawMessage
	}
	brief := new(spec.Result)
	if len(e.Result) == 0 {
		return brief
	}
	if err := json.Unmarshal(e.Result, &r); err != nil || r.IP4 != nil || r.IP6 != nil { // invalid, or of an old version
		return e.WholeResult()
	}
	for _, i := range r.Interfaces {
		brief.Interfaces = append(brief.Interfaces, spec.Interface{Name: i.Name, MAC: i.Mac, Sandbox: i.Sandbox, MTU: i.MTU})
	}
	for _, ip := range r.IPs {
		brief.IPs = append(brief.IPs, spec.IP{Address: ip.Address, Gateway: ip.Gateway, Interface: ip.Interface})
	}
	brief.DNS = r.DNS
	return brief
}

// WholeResult returns the entry's result; empty if it cannot be read.
func (e *Entry) WholeResult() *spec.Result {
	var conf struct{ CNIVersion string }
	_ = json.Unmarshal(e.Config, &conf) // without a version, or with another one than ours, it is the newest
	version, err := spec.ParseVersion(conf.CNIVersion)
	if err != nil {
		version = spec.Newest
	}
	r, err := spec.ParseResult(e.Result, version)
	if err != nil {
		return new(spec.Result)
	}
	return r
}
