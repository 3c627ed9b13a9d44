package hostlocal

import (
	"encoding/json"
	"net/netip"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// storeConf has the keys of the lease store. DEL and GC read no others, so they work with ranges
// that have become invalid.
type storeConf struct {
	ipam.StoreConf

	notice string // what ADD reports before it creates the directory; empty: none
}

// A conf is the configuration as written. Names of keys match in any case of letters. The three
// lists of requested addresses are joined. IPAM is nil if that key is missing.
type conf struct {
	IPAM *struct {
		storeConf
		ipam.RangeConf
		Routes     json.RawMessage `json:"routes"`
		ResolvConf string          `json:"resolvConf"`
	} `json:"ipam"`
	RuntimeConfig struct {
		IPRanges []ipam.RangeSet `json:"ipRanges"`
		IPs      []string        `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

// A plan is a checked configuration. The sets are in the order of the reference, which numbers its
// hint files by it: those of the capability, that of the plain keys, then "ranges".
type plan struct {
	storeConf
	sets   []ipam.RangeSet // may be empty except in ADD
	routes []spec.Route
	resolv string // path; empty: none
	wanted []netip.Addr
}

// check fills in the directory and checks it. A relative one would depend on the runtime's working
// directory. The default is the reference's: both can use the same files.
func (c *storeConf) check(r *spec.Request) error {
	if c.DataDir == "" {
		c.DataDir, c.notice = c.Dir(r.Call.StateDir, r.Network)
		return nil
	}
	dir, err := record.ResolveDir(r.Call, c.DataDir, state.Leases)
	if c.DataDir = string(dir); err != nil {
		return spec.AtKey("ipam.dataDir", err)
	}
	return nil
}

// readPlan reads and checks the whole configuration, and opens nothing. Errors have code 7.
func readPlan(r *spec.Request) (*plan, error) {
	var conf conf
	if err := r.Decode(&conf); err != nil {
		return nil, err
	}
	if conf.IPAM == nil {
		return nil, spec.Errorf(spec.CodeConfig, "IPAM config missing 'ipam' key").AtKey("ipam")
	}
	h := &plan{storeConf: conf.IPAM.storeConf, resolv: conf.IPAM.ResolvConf}
	if err := h.check(r); err != nil {
		return nil, err
	}
	h.sets = append(ipam.WithKeys("runtimeConfig.ipRanges", conf.RuntimeConfig.IPRanges), conf.IPAM.Sets()...)
	// The runtime sends no capabilities with STATUS, so ranges may be missing then.
	if len(h.sets) > 0 || r.Call.Verb == spec.Add {
		if err := ipam.Complete(h.sets, r.Net.Version); err != nil {
			return nil, spec.Invalid(err, "ipam")
		}
	}
	res, err := spec.ParseIPAM(conf.IPAM.Routes, nil)
	if err != nil {
		return nil, err
	}
	h.routes = res.Routes
	return h, h.readWanted(r, &conf)
}

// validate returns the ranges in the form in which addresses are leased.
func validate(r *spec.Request) (resources spec.Resources, err error) {
	h, err := readPlan(r)
	if err != nil {
		return resources, err
	}
	for i, set := range h.sets {
		for _, one := range set {
			resources.Ranges = append(resources.Ranges, spec.Range{Subnet: one.Subnet, First: one.Start, Last: one.End, Gateway: one.Gateway, Set: i})
		}
	}
	return resources, nil
}

// leaseDir returns the directory of the leases, even if other keys are invalid.
func leaseDir(r *spec.Request) string {
	var c struct {
		IPAM ipam.StoreConf `json:"ipam"`
	}
	_ = r.Decode(&c) // the verbs report what is wrong with it
	dir, _ := c.IPAM.Dir(r.Call.StateDir, r.Network)
	return dir
}

// readWanted reads the requested addresses, and the range set of each. Only ADD reads them; later
// verbs read the leases. Like the reference it uses the addresses of all sources; one that is in no
// range fails the ADD. Errors have code 4 or 7.
func (h *plan) readWanted(r *spec.Request, conf *conf) (err error) {
	if r.Call.Verb != spec.Add {
		return nil
	}
	var want []netip.Addr
	arg, _ := r.Arg("IP")
	for _, list := range []struct {
		code int
		key  string
		ips  []string
	}{
		{spec.CodeEnv, "IP in CNI_ARGS", []string{arg}},
		{spec.CodeConfig, "args.cni.ips", conf.Args.CNI.IPs},
		{spec.CodeConfig, "runtimeConfig.ips", conf.RuntimeConfig.IPs},
	} {
		for _, text := range list.ips {
			a, ok := wantedAddr(text)
			if !ok {
				return spec.Errorf(list.code, "%s: invalid IP address %q: write it as 10.1.0.5 or fd00::5", list.key, text)
			}
			if a.IsValid() {
				want = append(want, a)
			}
		}
	}
	h.wanted, err = ipam.MatchRequested(h.sets, want)
	return err
}

// wantedAddr reads an address with or without a prefix length; the empty string is the zero Addr.
// False: not an address. Like the reference it ignores the length, since the range has one.
func wantedAddr(text string) (netip.Addr, bool) {
	if text == "" {
		return netip.Addr{}, true
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().Unmap(), true
	}
	a, err := netip.ParseAddr(text)
	return a.Unmap(), err == nil && a.Zone() == ""
}

func (c storeConf) options(r *spec.Request) ipam.Options {
	return ipam.Options{KeepAcrossBoots: c.KeepAcrossBoots, Warn: r.Warn}
}
