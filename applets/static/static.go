// Package static is the CNI plugin static: addresses from the configuration.
package static

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "static",
	Conf:    conf{},
	Summary: "addresses from the configuration",
	Help: `
No leases: duplicate addresses are not detected. In "ipam":

key        type    default  meaning
addresses  list    -        of address (with its prefix length, 10.1.0.5/24) and gateway, or none
routes     list    -        of dst, gw, mtu, advmss, priority, table, scope
dns        object  -        nameservers, domain, search, options

CNI_ARGS IP: addresses with prefix lengths, between commas, which are added to these;
CNI_ARGS GATEWAY: gateways, each for those of IP whose network it is in.
args.cni.ips: addresses with prefix lengths, instead of all of the above.
runtimeConfig.ips (capability ips): the same, instead of all of the above.`,
	Plugin: func() spec.Plugin {
		return spec.Plugin{
			Facts: spec.Facts{IPAM: true, Args: true, ArgIP: true, AnyNetNS: true},
			Add:   resultOf, Check: check, Del: del, Status: status, Get: get, Validate: validate,
		}
	},
}

// conf is the configuration as written; keys match in any case of letters. [spec.ParseIPAM] reads
// routes and DNS.
type conf struct {
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

// resultOf is ADD, and what the other verbs compare with. Errors have code 7, or 4 for CNI_ARGS. As
// with the reference, the result may have only routes and DNS.
func resultOf(_ context.Context, r *spec.Request) (*spec.Result, error) {
	var conf conf
	if err := r.Decode(&conf); err != nil {
		return nil, err
	}
	if conf.IPAM == nil {
		return nil, spec.Errorf(spec.CodeConfig, "IPAM config missing 'ipam' key").AtKey("ipam")
	}
	res, err := spec.ParseIPAM(conf.IPAM.Routes, conf.IPAM.DNS)
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
		return nil, spec.Errorf(spec.CodeConfig, "CNI version %s does not support more than 1 address per family", r.Net.Version).AtKey("ipam.addresses")
	}
	return res, nil
}

// validate returns the addresses, each as a range.
func validate(r *spec.Request) (resources spec.Resources, err error) {
	res, err := resultOf(context.Background(), r)
	if err != nil {
		return resources, err
	}
	for _, ip := range res.IPs {
		resources.Ranges = append(resources.Ranges, spec.Range{Subnet: ip.Address.Masked(), First: ip.Address.Addr(), Last: ip.Address.Addr(), Gateway: ip.Gateway})
	}
	return resources, nil
}

// addresses returns the addresses of the source with the highest precedence: the capability,
// args.cni, or CNI_ARGS together with the configuration's own, as in the reference. It reads all
// sources, and so reports an error in an unused one too. It removes duplicates.
func (c *conf) addresses(r *spec.Request) (ips []spec.IP, err error) {
	for key, n := range map[string]int{"ipam.addresses": len(c.IPAM.Addresses), "args.cni.ips": len(c.Args.CNI.IPs), "runtimeConfig.ips": len(c.RuntimeConfig.IPs)} {
		if n > spec.MaxAddresses {
			return nil, spec.Errorf(spec.CodeConfig, "%d addresses in %s, and at most %d are taken", n, key, spec.MaxAddresses).AtKey(key)
		}
	}
	for i, a := range c.IPAM.Addresses {
		key := fmt.Sprintf("ipam.addresses[%d].", i)
		ip, err := parseIP(spec.CodeConfig, key+"address", "the 'address' field is expected to be in CIDR notation", a.Address)
		if err != nil {
			return nil, err
		}
		if a.Gateway != "" {
			// It may be outside the network: "routes" may have a route to it.
			ip.Gateway, err = parseGateway(spec.CodeConfig, key+"gateway", a.Gateway)
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
	fromArgs, err := addressesOfArgs(r)
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
			ip, err := parseIP(spec.CodeConfig, fmt.Sprintf("%s[%d]", list.key, i), "an entry in the 'ips' field is NOT in CIDR notation", text)
			if err != nil {
				return nil, err
			}
			ips = appendIP(ips, ip)
		}
	}
	return ips, nil
}

// addressesOfArgs reads IP and GATEWAY of CNI_ARGS. A gateway in no network of IP is a warning.
// GATEWAY applies to these addresses only, not to those of the configuration.
func addressesOfArgs(r *spec.Request) (ips []spec.IP, err error) {
	list, _ := r.Arg("IP")
	for _, text := range ipam.SplitWords(list) {
		ip, err := parseIP(spec.CodeEnv, "IP in CNI_ARGS", "the 'ip' field is expected to be in CIDR notation", text)
		if err != nil {
			return nil, err
		}
		ips = append(ips, ip)
	}
	list, _ = r.Arg("GATEWAY")
	for _, text := range ipam.SplitWords(list) {
		gw, err := parseGateway(spec.CodeEnv, "GATEWAY in CNI_ARGS", text)
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

// parseIP reads an address with its prefix length, and keeps host bits. key is its place, and
// notCIDR the reference's phrase for text that is not one. Addresses that no interface can have are
// errors before a link is created.
func parseIP(code int, key, notCIDR, text string) (spec.IP, error) {
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

// parseGateway reads the address of a gateway.
func parseGateway(code int, key, text string) (netip.Addr, error) {
	gw, err := netip.ParseAddr(text)
	if err != nil || gw.Zone() != "" {
		return gw, spec.Errorf(code, "invalid gateway address: %s", text).
			WithDetails("%s: write an address without prefix length and zone, as 10.1.0.1 or fd00::1", key).AtKey(key)
	}
	return gw.Unmap(), nil
}

// appendIP adds an address; if it exists already it gets a missing gateway.
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

// check looks for each address in prevResult, with its gateway if one is configured. prevResult may
// have addresses of other plugins.
func check(ctx context.Context, r *spec.Request) error {
	want, err := resultOf(ctx, r)
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

func del(context.Context, *spec.Request) error { return nil }

// get returns prevResult, or else the result of ADD. Nothing is stored, so an attachment is unknown
// if prevResult has a netdev that is gone.
func get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	if r.Prev == nil {
		return resultOf(ctx, r)
	}
	for _, i := range r.Prev.Interfaces {
		if i.Name != r.IfName || i.Sandbox == "" || i.MAC == "" { // no netdev of the container
			continue
		}
		op := frame.New(ctx, r)
		if err := op.OpenLink(spec.CodeUnknown); err != nil {
			return nil, err
		}
	}
	return r.Prev, nil
}

// status reports a configuration that no ADD could use, with the code of ADD.
func status(ctx context.Context, r *spec.Request) error {
	_, err := resultOf(ctx, r)
	return err
}
