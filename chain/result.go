package chain

import (
	"encoding/json"

	"github.com/cnibox/cnibox/spec"
)

// BriefResult returns the interfaces, addresses and DNS of the entry's result, which is much faster than
// all of it; empty if it cannot be read.
func (e *Entry) BriefResult() *spec.Result {
	var r struct {
		Interfaces []spec.Interface
		IPs        []spec.IP
		DNS        spec.DNS
		IP4, IP6   json.RawMessage
	}
	if len(e.Result) == 0 {
		return new(spec.Result)
	}
	if err := json.Unmarshal(e.Result, &r); err != nil || r.IP4 != nil || r.IP6 != nil { // invalid, or of an old version
		return e.WholeResult()
	}
	return &spec.Result{Interfaces: r.Interfaces, IPs: r.IPs, DNS: r.DNS}
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
