// Package static is the CNI plugin static: addresses that stand in the configuration.
package static

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"cnibox/applets/applet"
	"cnibox/ipam"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "static",
	Conf:    staticConf{},
	Summary: "addresses that stand in the configuration",
	Help: `
No leases: who uses an address twice is not told. In "ipam":

key        type    default  meaning
addresses  list    -        of address (with its prefix length, 10.1.0.5/24) and gateway, or none
routes     list    -        of dst, gw, mtu, advmss, priority, table, scope
dns        object  -        nameservers, domain, search, options

CNI_ARGS IP: addresses with prefix lengths, between commas, which are added to these;
CNI_ARGS GATEWAY: gateways, each for those of IP whose network it is in.
args.cni.ips: addresses with prefix lengths, instead of all of the above.
runtimeConfig.ips (capability ips): the same, instead of all of the above.`,
	AnyNetNS: true,
	Verbs:    spec.Verbs{Add: staticResult, Check: checkStatic, Del: delStatic, Status: statusStatic, Get: getStatic, IPAM: true, Args: true, ArgIP: true},
}

// staticConf is the configuration as written; keys match in any case of letters.
// Routes and DNS are read by [ipamResult].
type staticConf struct {
	IPAM *struct {
		Addresses []struct {
			Address string `json:"address"`
			Gateway string `json:"gateway"` // empty: none
		} `json:"addresses"`
		Routes json.RawMessage `json:"routes"`
		DNS    json.RawMessage `json:"dns"`
	} `json:"ipam"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

// staticResult is ADD, and what the other verbs compare with. Errors have code 7,
// or 4 for CNI_ARGS.
// No address at all is no error, as in the reference: routes and DNS may be all that
// somebody wants of it.
func staticResult(_ context.Context, r *spec.Request) (*spec.Result, error) {
	var conf staticConf
	if err := r.Decode(&conf); err != nil {
		return nil, err
	}
	if conf.IPAM == nil {
		return nil, spec.Errorf(spec.CodeConfig, "IPAM config missing 'ipam' key")
	}
	res, err := ipam.NewResult(conf.IPAM.Routes, conf.IPAM.DNS)
	if err != nil {
		return nil, err
	}
	if res.IPs, err = conf.addresses(r); err != nil {
		return nil, err
	}
	count4 := 0
	for _, ip := range res.IPs {
		if ip.Address.Addr().Is4() {
			count4++
		}
	}
	if r.Net.Version.NeedsAddress() && (count4 > 1 || len(res.IPs)-count4 > 1) {
		return nil, spec.Errorf(spec.CodeConfig, "CNI version %s does not support more than 1 address per family", r.Net.Version)
	}
	return res, nil
}

// addresses are those of the strongest source: the capability, args.cni, or
// CNI_ARGS together with the configuration's own, as in the reference.
// All sources are read, so a mistake in a weaker one is told as well. An address
// given twice counts once: the kernel would refuse the second.
func (c *staticConf) addresses(r *spec.Request) (ips []spec.IP, err error) {
	for i, a := range c.IPAM.Addresses {
		key := fmt.Sprintf("ipam.addresses[%d].", i)
		ip, err := staticIP(spec.CodeConfig, key+"address", "the 'address' field is expected to be in CIDR notation", a.Address)
		if err != nil {
			return nil, err
		}
		if a.Gateway != "" {
			// It may be outside the network: a route to it can stand in "routes".
			ip.Gateway, err = staticGateway(spec.CodeConfig, key+"gateway", a.Gateway)
			if err == nil && ip.Gateway.Is4() != ip.Address.Addr().Is4() {
				err = spec.Errorf(spec.CodeConfig, "invalid gateway address: %s", a.Gateway).
					WithDetails("%sgateway: it is not of the family of %s", key, a.Address).AtKey(key + "gateway")
			}
			if err != nil {
				return nil, err
			}
		}
		ips = appendIP(ips, ip)
	}
	fromArgs, err := staticArgs(r)
	if err != nil {
		return nil, err
	}
	for _, ip := range fromArgs {
		ips = appendIP(ips, ip)
	}
	for _, list := range []struct {
		key string
		ips []string
	}{{"args.cni.ips", c.Args.CNI.IPs}, {"runtimeConfig.ips", c.RuntimeConfig.IPs}} {
		if len(list.ips) > 0 {
			ips = nil
		}
		for i, text := range list.ips {
			ip, err := staticIP(spec.CodeConfig, fmt.Sprintf("%s[%d]", list.key, i), "an entry in the 'ips' field is NOT in CIDR notation", text)
			if err != nil {
				return nil, err
			}
			ips = appendIP(ips, ip)
		}
	}
	return ips, nil
}

// staticArgs reads IP and GATEWAY of CNI_ARGS. A gateway that is in no network of
// IP's is let pass with a warning, where the reference says nothing.
// GATEWAY is for these addresses alone, not for the configuration's.
func staticArgs(r *spec.Request) (ips []spec.IP, err error) {
	list, _ := r.Arg("IP")
	for _, text := range ipam.SplitWords(list) {
		ip, err := staticIP(spec.CodeEnv, "IP in CNI_ARGS", "the 'ip' field is expected to be in CIDR notation", text)
		if err != nil {
			return nil, err
		}
		ips = append(ips, ip)
	}
	list, _ = r.Arg("GATEWAY")
	for _, text := range ipam.SplitWords(list) {
		gw, err := staticGateway(spec.CodeEnv, "GATEWAY in CNI_ARGS", text)
		if err != nil {
			return nil, err
		}
		used := false
		for i := range ips {
			if ips[i].Address.Contains(gw) {
				ips[i].Gateway, used = gw, true
			}
		}
		if !used {
			r.Warn("CNI_ARGS: GATEWAY %s is in the network of no address in IP: not used", gw)
		}
	}
	return ips, nil
}

// staticIP reads an address with its prefix length, host bits kept. key is where it
// is written, and notCIDR the phrase of the reference for the place.
// Addresses that no interface can have are refused before a link is made.
func staticIP(code int, key, notCIDR, text string) (spec.IP, error) {
	p, err := netip.ParsePrefix(text)
	switch a := p.Addr(); {
	case err != nil || a.Is4In6():
		return spec.IP{}, spec.Errorf(code, "%s, got: '%s'", notCIDR, text).
			WithDetails("%s: write an address and its prefix length, as 10.1.0.5/24 or fd00::5/64", key).AtKey(key)
	case a.IsMulticast() || a.IsUnspecified():
		return spec.IP{}, spec.Errorf(code, "%s: no interface can have the address %q", key, text).AtKey(key)
	}
	return spec.IP{Address: p}, nil
}

// staticGateway reads the address of a gateway.
func staticGateway(code int, key, text string) (netip.Addr, error) {
	gw, err := netip.ParseAddr(text)
	if err != nil || gw.Zone() != "" {
		return gw, spec.Errorf(code, "invalid gateway address: %s", text).
			WithDetails("%s: write an address without prefix length and zone, as 10.1.0.1 or fd00::1", key).AtKey(key)
	}
	return gw.Unmap(), nil
}

// appendIP adds an address; one that is there already gets the gateway it lacks.
func appendIP(ips []spec.IP, ip spec.IP) []spec.IP {
	for i := range ips {
		if ips[i].Address != ip.Address {
			continue
		}
		if !ips[i].Gateway.IsValid() {
			ips[i].Gateway = ip.Gateway
		}
		return ips
	}
	return append(ips, ip)
}

// checkStatic wants each address in prevResult, with its gateway.
// The reference takes the absence of an address for agreement. Addresses of other
// plugins may be there as well, and a gateway that was not configured is the
// interface plugin's.
func checkStatic(ctx context.Context, r *spec.Request) error {
	want, err := staticResult(ctx, r)
	if err != nil {
		return err
	}
	for _, ip := range want.IPs {
		i := slices.IndexFunc(r.Prev.IPs, func(o spec.IP) bool { return o.Address == ip.Address })
		switch {
		case i < 0:
			return spec.Errorf(spec.CodeCheck, "static: Failed to match addr %s: prevResult does not have it", ip.Address)
		case ip.Gateway.IsValid() && r.Prev.IPs[i].Gateway != ip.Gateway:
			return spec.Errorf(spec.CodeCheck, "static: Failed to match addr %s: its gateway in prevResult is %s, not %s",
				ip.Address, r.Prev.IPs[i].Gateway, ip.Gateway)
		}
	}
	return nil
}

// delStatic has nothing to release, whatever the configuration says.
func delStatic(context.Context, *spec.Request) error { return nil }

// getStatic answers with prevResult, else as ADD does: nothing is kept, so no
// container is unknown.
func getStatic(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	if r.Prev != nil {
		return r.Prev, nil
	}
	return staticResult(ctx, r)
}

// statusStatic reports a configuration that no ADD could use; the code is ADD's.
func statusStatic(ctx context.Context, r *spec.Request) error {
	_, err := staticResult(ctx, r)
	return err
}
