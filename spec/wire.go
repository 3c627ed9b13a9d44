package spec

import (
	"bytes"
	"encoding/json"
)

// indentLimit is the size in bytes from which a result is printed without indentation, which
// multiplies the size.
const indentLimit = 64 << 10

// The limits of interfaces[].mtu and routes[].mtu in the result schema; lo has 65536, which is not
// printed. 68 is the least MTU of IPv4 (RFC 791).
const minMTU, maxMTU = 68, 65535

// Encode encodes the result in the form of version v, indented by four spaces and without a newline
// at the end. It fails with code 7 if v is unknown. From 0.3.0 on only members that the version
// lacks are lost; below 0.3.0 also the interfaces and all but one address of each family.
func (r *Result) Encode(v Version) ([]byte, error) { return r.EncodeFor(v, "") }

// EncodeFor is [Result.Encode]; below 0.3.0, where a result has one address of each family, it
// prefers those of the named interface of the container. Without a name, or if none of its
// addresses is known, it takes the first one.
//
// A runtime stores and prints this form: a result without addresses is valid too, since external
// plugins may return one in all versions.
func (r *Result) EncodeFor(v Version, ifName string) ([]byte, error) {
	o, err := r.wire(v, ifName)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(o)
	if err != nil {
		return nil, Errorf(CodeInternal, "result: %w", err)
	}
	b = EscapeJSON(b)
	if len(b) > indentLimit {
		return b, nil
	}
	var out bytes.Buffer
	json.Indent(&out, b, "", "    ") // valid JSON
	return out.Bytes(), nil
}

// An object is a JSON object to be encoded. It includes members that were read and are not in the
// specification.
type object map[string]any

// object begins an object with the unknown members.
func (m members) object() object {
	o := object{}
	for key, value := range m {
		o[key] = value
	}
	return o
}

// put adds a member unless its value is zero.
func put[T comparable](o object, key string, value T) {
	if value != *new(T) {
		o[key] = value
	}
}

// putList adds a list unless it is empty. It is never null.
func putList[T, E any](o object, key string, list []T, element func(T) E) {
	if len(list) == 0 {
		return
	}
	out := make([]E, len(list))
	for i, e := range list {
		out[i] = element(e)
	}
	o[key] = out
}

// wire returns the result in the shape of version v.
func (r *Result) wire(v Version, ifName string) (object, error) {
	if !isSupported(v.String(), Version{}) {
		return nil, Errorf(CodeConfig, "no converter for CNI result version %s to %s", Newest, v)
	}
	o := r.extra.object()
	s := shape{addressVersion: !v.AtLeast(V100), attributes: v.AtLeast(V110)}
	if v == V030 {
		delete(o, "ip") // it would be read as the list of addresses
	}
	o["cniVersion"] = v.String()
	// Older versions always have dns, {} if it is empty.
	if s.addressVersion || !r.DNS.Empty() {
		o["dns"] = r.DNS.wire()
	}
	if v.NeedsAddress() {
		r.families(o, ifName)
		return o, nil
	}
	putList(o, "interfaces", r.Interfaces, s.iface)
	putList(o, "ips", r.IPs, func(ip IP) object { return s.ip(ip, len(r.Interfaces)) })
	putList(o, "routes", r.Routes, Route.wire)
	return o, nil
}

// families writes ip4 and ip6, which versions below 0.3.0 have beside dns. A route is in the member
// of its family, with its attributes: the plugin that sets the routes of an IPAM plugin finds them
// only there.
func (r *Result) families(o object, ifName string) {
	for _, key := range []string{"ip4", "ip6"} {
		is4 := key == "ip4"
		ip := r.first(is4, ifName)
		if ip == nil {
			continue
		}
		f := ip.extra.object()
		f["ip"] = ip.Address
		put(f, "gateway", ip.Gateway)
		var routes []Route
		for _, rt := range r.Routes {
			if rt.Dst.Addr().Is4() == is4 {
				routes = append(routes, rt)
			}
		}
		putList(f, "routes", routes, Route.wire)
		o[key] = f
	}
}

// first returns the first address of a family on the named interface in the container, else the
// first of the family, else nil.
func (r *Result) first(is4 bool, ifName string) *IP {
	var own []IP
	if ifName != "" {
		own = r.Addresses(ifName, AnySandbox)
	}
	for _, ip := range append(own, r.IPs...) {
		if ip.Address.Addr().Is4() == is4 {
			return &ip
		}
	}
	return nil
}

// A shape is the form of the parts of a result from 0.3.0 on. All versions have attributes of
// routes, which the reference prints from 0.3.0 on.
type shape struct {
	addressVersion bool // below 1.0.0 an address has its family
	attributes     bool // from 1.1.0 on an interface has mtu, socketPath and pciID
}

// iface writes an element of interfaces; the name is always present. An MTU outside the schema's
// limits is omitted, such as lo's.
func (s shape) iface(i Interface) object {
	o := i.extra.object()
	o["name"] = i.Name
	put(o, "mac", i.MAC)
	put(o, "sandbox", i.Sandbox)
	if !s.attributes {
		return o
	}
	if minMTU <= i.MTU && i.MTU <= maxMTU {
		o["mtu"] = i.MTU
	}
	put(o, "socketPath", i.SocketPath)
	put(o, "pciID", i.PCIID)
	return o
}

// ip writes an element of ips; older versions need the version member, which follows from the
// address. It omits an index outside the list, on which containerd crashes.
func (s shape) ip(ip IP, interfaces int) object {
	o := ip.extra.object()
	o["address"] = ip.Address
	put(o, "gateway", ip.Gateway)
	if s.addressVersion {
		o["version"] = "6"
		if ip.Address.Addr().Is4() {
			o["version"] = "4"
		}
	}
	if n := ip.Interface; n != nil && 0 <= *n && *n < interfaces {
		o["interface"] = *n
	}
	return o
}

// wire writes the attributes of 1.1.0 in all versions.
func (r Route) wire() object {
	o := r.extra.object()
	o["dst"] = r.Dst
	put(o, "gw", r.GW)
	put(o, "mtu", r.MTU)
	put(o, "advmss", r.AdvMSS)
	put(o, "priority", r.Priority)
	put(o, "table", r.Table)
	put(o, "scope", r.Scope)
	return o
}

// wire writes dns, {} if it is empty.
func (d DNS) wire() object {
	o := d.extra.object()
	put(o, "domain", d.Domain)
	for key, list := range map[string][]string{"nameservers": d.Nameservers, "search": d.Search, "options": d.Options} {
		if len(list) > 0 {
			o[key] = list
		}
	}
	return o
}
