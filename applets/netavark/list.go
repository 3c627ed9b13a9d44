package netavark

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A network is one of podman's, as all verbs get it.
type network struct {
	Name        string            `json:"name"`
	ID          string            `json:"id"`
	Interface   string            `json:"network_interface"`
	Internal    bool              `json:"internal"`
	IPv6        bool              `json:"ipv6_enabled"`
	Subnets     []subnetOf        `json:"subnets"`
	Routes      []routeOf         `json:"routes"`
	Options     map[string]string `json:"options"`
	IPAMOptions map[string]string `json:"ipam_options"`
	DNSServers  []string          `json:"network_dns_servers"`
}

type subnetOf struct {
	Subnet     netip.Prefix `json:"subnet"`
	Gateway    *netip.Addr  `json:"gateway,omitempty"`
	LeaseRange *struct {
		Start *netip.Addr `json:"start_ip,omitempty"`
		End   *netip.Addr `json:"end_ip,omitempty"`
	} `json:"lease_range,omitempty"`
}

type routeOf struct {
	Destination netip.Prefix `json:"destination"`
	Gateway     netip.Addr   `json:"gateway"`
	Metric      int          `json:"metric,omitempty"`
}

// unmanaged reports whether the bridge is the administrator's.
func (n *network) unmanaged() bool { return n.Options["mode"] == "unmanaged" }

// options are the values of -o.
type options struct {
	mtu, vlan, metric       int
	isolate, noDefaultRoute bool
	bandwidth               uint64 // bits per second; 0: no limit
}

// readOptions reads the options of a network. One that is unknown is an error, since it would have no
// effect.
func (n *network) readOptions() (o options, err error) {
	for _, key := range slices.Sorted(maps.Keys(n.Options)) {
		value := n.Options[key]
		switch key {
		case "network":
			err = spec.CheckNetworkName(value)
		case "mode":
			if value != "managed" && value != "unmanaged" {
				err = errors.New("it must be managed or unmanaged")
			}
		case "mtu":
			o.mtu, err = number(value, 0, math.MaxUint16)
		case "vlan":
			o.vlan, err = number(value, 0, 4094)
		case "metric":
			o.metric, err = number(value, 0, math.MaxInt32)
		case "isolate":
			if o.isolate = value == "strict"; !o.isolate {
				o.isolate, err = boolean(value)
			}
		case "no_default_route":
			o.noDefaultRoute, err = boolean(value)
		case "bandwidth":
			o.bandwidth, err = bits(value)
		default:
			err = errors.New("it is unknown: bandwidth, isolate, metric, mode, mtu, network, no_default_route and vlan are known")
		}
		if err != nil {
			return o, spec.Errorf(spec.CodeConfig, "option %s=%s: %w", key, value, err)
		}
	}
	if n.Options["network"] != "" && len(n.Options) > 1 {
		return o, spec.Errorf(spec.CodeConfig, "option network=%s: the configuration of that network has what other options ask for: leave these out", n.Options["network"])
	}
	return o, nil
}

func number(s string, least, most int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("it must be a number from %d to %d", least, most)
	}
	return n, nil
}

func boolean(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		err = errors.New("it must be true or false")
	}
	return b, err
}

// bits reads a rate in bits per second, as 100M.
func bits(s string) (uint64, error) {
	digits, factor := s, uint64(1)
	for suffix, f := range map[string]uint64{"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9} {
		if cut, ok := strings.CutSuffix(s, suffix); ok {
			digits, factor = cut, f
		}
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if n == 0 || err != nil || n*factor > 1e12 {
		return 0, errors.New("it must be a rate in bits per second, as 100M, of at most 1000G")
	}
	return n * factor, nil
}

// attachment returns the list of a network, and the attachment of the container to it.
func (d *driver) attachment(r *request, netns string) (*chain.List, chain.RuntimeConf, error) {
	t := chain.RuntimeConf{ContainerID: r.ContainerID, IfName: r.Options.InterfaceName, NetNS: netns}
	l, err := d.list(r)
	if err != nil {
		return nil, t, err
	}
	d.Log.About(applet.Subject{Verb: d.Args[0], Network: l.Name, ContainerID: t.ContainerID, IfName: t.IfName, NetNS: netns})
	t.Capabilities, t.Args, err = r.asks(l)
	return l, t, err
}

// list returns the list of a network: that of the option network, or one that is made of podman's.
func (d *driver) list(r *request) (*chain.List, error) {
	o, err := r.Network.readOptions()
	if err != nil {
		return nil, err
	}
	if name := r.Network.Options["network"]; name != "" {
		l, err := chain.NewDir(d.confDir()).Load(name)
		if err != nil && l == nil {
			if e, cached := d.runner.Cache.Lookup(spec.Attachment{Network: name, ContainerID: r.ContainerID, IfName: r.Options.InterfaceName}); cached == nil {
				return e.List()
			}
		}
		return l, err
	}
	if err := spec.CheckNetworkName(r.Network.Name); err != nil {
		return nil, err
	}
	addresses, err := r.addresses()
	if err != nil {
		return nil, err
	}
	doc, err := json.Marshal(r.Network.list(o, addresses))
	if err != nil {
		return nil, err
	}
	return chain.Parse(doc)
}

// An address is one of the container's. podman has chosen it.
type address struct {
	Address netip.Prefix `json:"address"`
	Gateway string       `json:"gateway,omitempty"`
}

// addresses returns the addresses of the container, with the prefix lengths and the gateways of their
// subnets.
func (r *request) addresses() (list []address, err error) {
	for _, ip := range r.Options.StaticIPs {
		i := slices.IndexFunc(r.Network.Subnets, func(s subnetOf) bool { return s.Subnet.Contains(ip) })
		if i < 0 {
			return nil, spec.Errorf(spec.CodeConfig, "address %s is in no subnet of network %s", ip, r.Network.Name)
		}
		a := address{Address: netip.PrefixFrom(ip, r.Network.Subnets[i].Subnet.Bits())}
		if gw := r.Network.Subnets[i].Gateway; gw != nil && gw.IsValid() {
			a.Gateway = gw.String()
		}
		list = append(list, a)
	}
	return list, nil
}

type object map[string]any

// list returns the configuration of a network, as a document of the specification.
func (n *network) list(o options, addresses []address) object {
	routed := o.vlan == 0 && !n.unmanaged() // the bridge has the gateways
	gateway, routes := false, []object{}
	for _, a := range addresses {
		gateway = gateway || a.Gateway != ""
		if a.Gateway == "" || n.Internal || o.noDefaultRoute {
			continue
		}
		dst := "0.0.0.0/0"
		if a.Address.Addr().Is6() {
			dst = "::/0"
		}
		routes = append(routes, route(dst, a.Gateway, o.metric))
	}
	for _, r := range n.Routes {
		routes = append(routes, route(r.Destination.String(), r.Gateway.String(), cmp.Or(r.Metric, o.metric)))
	}
	bridge := object{
		"type": "bridge", "bridge": n.Interface, "isGateway": routed && gateway, "ipMasq": routed && gateway && !n.Internal, "hairpinMode": true,
		"capabilities": map[string]bool{"mac": true}, "dns": object{"nameservers": n.DNSServers},
	}
	switch driver := n.IPAMOptions["driver"]; {
	case driver == "dhcp":
		bridge["ipam"] = object{"type": "dhcp"}
	case len(addresses) > 0:
		bridge["ipam"] = object{"type": "static", "addresses": addresses, "routes": routes}
	}
	if o.mtu > 0 {
		bridge["mtu"] = o.mtu
	}
	if o.vlan > 0 {
		bridge["vlan"] = o.vlan
	}
	plugins := []object{bridge}
	if routed {
		firewall := object{"type": "firewall"}
		if o.isolate {
			firewall["ingressPolicy"] = "same-bridge"
		}
		plugins = append(plugins, object{"type": "portmap", "capabilities": map[string]bool{spec.CapPorts: true}}, firewall)
	}
	if o.bandwidth > 0 {
		burst := min(max(o.bandwidth/10, 1e6), 8*math.MaxUint32) // 100 ms
		plugins = append(plugins, object{"type": "bandwidth", "ingressRate": o.bandwidth, "ingressBurst": burst, "egressRate": o.bandwidth, "egressBurst": burst})
	}
	return object{"cniVersion": spec.Newest.String(), "name": n.Name, "loadOnlyInlinedPlugins": true, "plugins": plugins}
}

func route(dst, gateway string, metric int) object {
	r := object{"dst": dst, "gw": gateway}
	if metric > 0 {
		r["priority"] = metric
	}
	return r
}

// asks returns what the container asks the network for: by capabilities, or by CNI_ARGS where no
// plugin has these.
func (r *request) asks(l *chain.List) (caps map[string]json.RawMessage, args [][2]string, err error) {
	caps = map[string]json.RawMessage{}
	ask := func(capability, arg, text string, value any) {
		if arg != "" && !slices.ContainsFunc(l.Plugins, func(p chain.Plugin) bool { return p.Capabilities[capability] }) {
			args = append(args, [2]string{arg, text})
			return
		}
		caps[capability], _ = json.Marshal(value) // strings and numbers
	}
	if r.ContainerName != "" && !strings.ContainsAny(r.ContainerName, ";=") { // as podman's CNI backend had it
		args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", r.ContainerName}}
	}
	ports, err := r.ports()
	if err != nil {
		return nil, nil, err
	}
	if len(ports) > 0 {
		ask(spec.CapPorts, "", "", ports)
	}
	if len(r.Options.Aliases) > 0 {
		ask("aliases", "", "", map[string][]string{l.Name: r.Options.Aliases})
	}
	if r.Options.StaticMAC != "" {
		ask("mac", "MAC", r.Options.StaticMAC, r.Options.StaticMAC)
	}
	if len(r.Options.StaticIPs) > 0 && r.Network.Options["network"] != "" {
		addresses, err := r.addresses()
		if err != nil {
			return nil, nil, err
		}
		texts := make([]string, len(addresses))
		for i, a := range addresses {
			texts[i] = a.Address.String()
		}
		ask("ips", "IP", strings.Join(texts, ","), texts)
	}
	return caps, args, nil
}

// ports returns the published ports, one by one.
func (r *request) ports() (ports []spec.Port, err error) {
	for _, m := range r.PortMappings {
		for protocol := range strings.SplitSeq(cmp.Or(m.Protocol, "tcp"), ",") {
			n := int(max(m.Range, 1))
			if m.HostPort == 0 || m.ContainerPort == 0 || int(m.HostPort)+n-1 > math.MaxUint16 || int(m.ContainerPort)+n-1 > math.MaxUint16 {
				return nil, spec.Errorf(spec.CodeConfig, "port mapping %d:%d, range %d: ports are numbers from 1 to 65535", m.HostPort, m.ContainerPort, m.Range)
			}
			for i := range n {
				ports = append(ports, spec.Port{HostPort: m.HostPort + uint16(i), ContainerPort: m.ContainerPort + uint16(i), Protocol: protocol, HostIP: m.HostIP})
			}
		}
	}
	return ports, nil
}
