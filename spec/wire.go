package spec

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
)

// indentLimit is the size from which a result is printed without indentation,
// in bytes: nobody reads that much, and indentation multiplies it.
const indentLimit = 64 << 10

// The bounds of interfaces[].mtu and routes[].mtu in the result schema; lo has 65536, which is
// not printed.
// 68 is the least that IPv4 works with (RFC 791).
const minMTU, maxMTU = 68, 65535

// Encode writes the result in the shape of version v, indented by four spaces
// and without a newline at the end. It fails with code 7 if v is unknown.
// Nothing else is lost from 0.3.0 on but what the version has no member for; below, the
// interfaces and all but one address of each family are.
func (r *Result) Encode(v Version) ([]byte, error) { return r.EncodeFor(v, "") }

// EncodeFor is [Result.Encode]; below 0.3.0, where a result has one address of
// each family, it prefers those of the named interface of the container.
// Without a name, or where none of its addresses is known, the first one is taken.
// The reference takes the first always, which in a chain may be another interface's.
//
// It is what a runtime keeps and prints: a result without addresses is written as well, since
// external plugins may answer so in all versions.
func (r *Result) EncodeFor(v Version, ifName string) ([]byte, error) {
	b, err := r.wire(v, ifName)
	if err != nil || len(b) > indentLimit {
		return b, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "    "); err != nil {
		return nil, Errorf(CodeInternal, "result: %w", err)
	}
	return out.Bytes(), nil
}

// wire writes the result in the shape of version v on one line.
func (r *Result) wire(v Version, ifName string) ([]byte, error) {
	if !known(v.String(), Version{}) {
		return nil, Errorf(CodeConfig, "no converter for CNI result version %s to %s", Newest, v)
	}
	o := object{extra: r.extra}
	o.str("cniVersion", v.String())
	if v.NeedsAddress() {
		r.families(&o, ifName)
		return o.bytes(), nil
	}
	if v == V030 && r.extra["ip"] != nil {
		// There it would be read as the list of addresses.
		o.extra = maps.Clone(r.extra)
		delete(o.extra, "ip")
	}
	s := shape{newest: v.AtLeast(V100)}
	// The reference prints 1.0.0 and later from maps, so its keys are sorted; people
	// compare outputs, so ours are as well.
	o.sorted = s.newest
	o.list("interfaces", len(r.Interfaces), func(i int) object { return s.iface(r.Interfaces[i]) })
	o.list("ips", len(r.IPs), func(i int) object { return s.ip(r.IPs[i], len(r.Interfaces)) })
	o.list("routes", len(r.Routes), func(i int) object { return s.route(r.Routes[i]) })
	// Older versions have dns always, {} if there is nothing in it.
	if !s.newest || !r.DNS.Empty() {
		o.raw("dns", s.dns(r.DNS))
	}
	return o.bytes(), nil
}

// families writes ip4, ip6 and dns, all that versions below 0.3.0 have. A
// route goes where its family is; attributes of routes have no place.
func (r *Result) families(o *object, ifName string) {
	for _, key := range []string{"ip4", "ip6"} {
		is4 := key == "ip4"
		ip := r.first(is4, ifName)
		if ip == nil {
			continue
		}
		f := object{extra: ip.extra}
		f.str("ip", ip.Address.String())
		f.addr("gateway", ip.Gateway)
		var routes []Route
		for _, rt := range r.Routes {
			if rt.Dst.Addr().Is4() == is4 {
				routes = append(routes, Route{Dst: rt.Dst, GW: rt.GW, extra: rt.extra})
			}
		}
		f.list("routes", len(routes), func(i int) object { return shape{}.route(routes[i]) })
		o.raw(key, f.bytes())
	}
	o.raw("dns", shape{}.dns(r.DNS))
}

// first returns the first address of a family that is the named interface's
// in the container, else the first of the family, else nil.
func (r *Result) first(is4 bool, ifName string) *IP {
	var found *IP
	for i := range r.IPs {
		ip := &r.IPs[i]
		if ip.Address.Addr().Is4() != is4 {
			continue
		}
		if n := ip.Interface; n != nil && 0 <= *n && *n < len(r.Interfaces) &&
			r.Interfaces[*n].Name == ifName && r.Interfaces[*n].Sandbox != "" {
			return ip
		}
		if found == nil {
			found = ip
		}
	}
	return found
}

// A shape is what the parts of a result look like from 0.3.0 on: before 1.0.0
// in the order of the specification, since then sorted as the reference does.
// Both have attributes of routes, which the reference prints in all versions.
type shape struct{ newest bool }

// iface writes an element of interfaces; mtu, socketPath and pciID are the
// newest family's, and the name is always there.
// An MTU out of the schema's bounds is left out, as lo's.
func (s shape) iface(i Interface) object {
	o := object{sorted: s.newest, extra: i.extra}
	o.raw("name", quote(i.Name))
	o.str("mac", i.MAC)
	if s.newest && minMTU <= i.MTU && i.MTU <= maxMTU {
		o.num("mtu", i.MTU)
	}
	o.str("sandbox", i.Sandbox)
	if s.newest {
		o.str("socketPath", i.SocketPath)
		o.str("pciID", i.PCIID)
	}
	return o
}

// ip writes an element of ips; the version, which older ones need, follows
// from the address.
// An index outside the list is left out too: containerd crashes on one.
func (s shape) ip(ip IP, interfaces int) object {
	o := object{sorted: s.newest, extra: ip.extra}
	if !s.newest {
		version := "6"
		if ip.Address.Addr().Is4() {
			version = "4"
		}
		o.str("version", version)
	}
	// Runtimes use the index without a look at the list's length.
	if n := ip.Interface; n != nil && 0 <= *n && *n < interfaces {
		o.optNum("interface", n)
	}
	o.str("address", ip.Address.String())
	o.addr("gateway", ip.Gateway)
	return o
}

// route writes the attributes of 1.1.0 in all versions, as the reference does.
func (s shape) route(r Route) object {
	o := object{sorted: s.newest, extra: r.extra}
	o.str("dst", r.Dst.String())
	o.addr("gw", r.GW)
	o.num("mtu", r.MTU)
	o.num("advmss", r.AdvMSS)
	o.num("priority", r.Priority)
	o.optNum("table", r.Table)
	o.optNum("scope", r.Scope)
	return o
}

// dns writes dns, {} if there is nothing in it.
// Its extra members are written, as everywhere.
func (s shape) dns(d DNS) []byte {
	o := object{sorted: s.newest, extra: d.extra}
	o.strs("nameservers", d.Nameservers)
	o.str("domain", d.Domain)
	o.strs("search", d.Search)
	o.strs("options", d.Options)
	return o.bytes()
}

// An object is a JSON object in the making. Only raw writes what is zero.
type object struct {
	sorted bool    // by key, with the extra members among them; else they follow
	extra  members // written as they came
	ms     []Member
}

// raw adds a member with a value that is JSON.
// The value is not looked at again.
func (o *object) raw(key string, value []byte) { o.ms = append(o.ms, Member{Name: key, Value: value}) }

// str adds a string that is not empty.
func (o *object) str(key, s string) {
	if s != "" {
		o.raw(key, quote(s))
	}
}

// num adds a number that is not 0.
func (o *object) num(key string, n int) {
	if n != 0 {
		o.optNum(key, &n)
	}
}

// optNum adds a number, also 0, unless the pointer is nil.
func (o *object) optNum(key string, n *int) {
	if n != nil {
		o.raw(key, strconv.AppendInt(nil, int64(*n), 10))
	}
}

// addr adds an address that is set.
func (o *object) addr(key string, a netip.Addr) {
	if a.IsValid() {
		o.str(key, a.String())
	}
}

// strs adds a list of strings that is not empty: a list is never null, and
// an empty one says no more than none.
func (o *object) strs(key string, list []string) {
	if len(list) == 0 {
		return
	}
	b := []byte{'['}
	for _, s := range list {
		b = append(comma(b), quote(s)...)
	}
	o.raw(key, append(b, ']'))
}

// list adds a list of n objects if there is any.
func (o *object) list(key string, n int, element func(i int) object) {
	if n == 0 {
		return
	}
	b := []byte{'['}
	for i := range n {
		e := element(i)
		b = append(comma(b), e.bytes()...)
	}
	o.raw(key, append(b, ']'))
}

// sortMembers sorts by name, by moving each member up to its place: quick here,
// since the extra members, of which there may be many, are in order already,
// and 14 kB less than another instance of the library's sort.
func sortMembers(ms []Member) {
	for i := range ms {
		for j := i; j > 0 && ms[j].Name < ms[j-1].Name; j-- {
			ms[j], ms[j-1] = ms[j-1], ms[j]
		}
	}
}

// bytes returns the object on one line.
// Extra members are sorted, so that equal results are equal bytes. It is called once:
// it adds them to the object.
func (o *object) bytes() []byte {
	for _, key := range slices.Sorted(maps.Keys(o.extra)) {
		o.raw(key, o.extra[key])
	}
	if o.sorted {
		sortMembers(o.ms)
	}
	out := []byte{'{'}
	for _, m := range o.ms {
		out = append(comma(out), quote(m.Name)...)
		out = append(out, ':')
		out = append(out, m.Value...)
	}
	return append(out, '}')
}
