package spec

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ParseResult reads a result of any version; one without cniVersion is of
// version conf. Errors have code 6 (not a JSON object) or 7 and name the
// member.
//
// The members decide about the form, not the version: the reference's loopback prints 0.2.0 with
// members of a newer version. Errors are an index outside the list of interfaces, a null in a list,
// a missing address or destination, and an address with invalid syntax. An empty gateway counts as
// absent, and so does the index -1, which old libraries write. A gateway of another family is none:
// see [Result.CheckGateways].
func ParseResult(b []byte, conf Version) (*Result, error) {
	members, err := Members(b)
	if err != nil {
		return nil, Errorf(CodeDecode, "result: %w", err)
	}
	p := parser{}
	r, err := p.result(members, conf)
	if err != nil {
		return nil, Errorf(CodeConfig, "result: %w", err)
	}
	return r, nil
}

// result reads the members of a result. Errors have no code; the caller knows whether they are
// about a plugin's answer or a configuration.
func (p *parser) result(f fields, conf Version) (*Result, error) {
	v, err := resultVersion(f.take("cniVersion"), conf)
	if err != nil {
		return nil, err
	}
	r := &Result{}
	for i, raw := range p.upTo(maxRoutes, "interfaces", f.take("interfaces")) {
		r.Interfaces = append(r.Interfaces, p.iface(ElementKey("interfaces", i), raw))
	}
	p.family(r, "ip4", f.take("ip4"))
	p.family(r, "ip6", f.take("ip6"))
	ips := f.take("ips")
	if v == V030 { // whose text calls them ip; in other versions it is an unknown member
		if ip := f.take("ip"); ips == nil {
			ips = ip
		}
	}
	for i, raw := range p.list("ips", ips) {
		r.IPs = append(r.IPs, p.ip(ElementKey("ips", i), raw, len(r.Interfaces)))
	}
	for i, raw := range p.upTo(maxRoutes, "routes", f.take("routes")) {
		r.Routes = append(r.Routes, p.route(ElementKey("routes", i), raw))
	}
	r.DNS = p.dns("dns", f.take("dns"))
	r.extra = f.rest()
	r.odd = p.odd
	p.odd = nil
	r.eachMixed(func(key, text string) { r.odd = append(r.odd, key+": "+text) })
	return r, p.err
}

// resultVersion returns the version of a result: its own if it has one, else conf. An unknown
// version is an error, since its form may differ.
func resultVersion(raw json.RawMessage, conf Version) (Version, error) {
	text := ""
	if err := optional("cniVersion", raw, &text); err != nil {
		return Version{}, err
	}
	if text == "" {
		return conf, nil
	}
	if !isSupported(text, Version{}) {
		return Version{}, fmt.Errorf("unsupported CNI result version %q", text)
	}
	return ParseVersion(text)
}

// A parser reads the parts of a result. Absent and null members are zero. It keeps the first error;
// values read after it are invalid. Paths are those of messages: ips[0].address.
type parser struct {
	err      error
	anyIndex bool     // ips[].interface may point outside the list, see [Request.CheckIndexes]
	odd      []string // see [Result.TakeOdd]
}

// note records a member that is read otherwise than it is written, or left out.
func (p *parser) note(path, format string, args ...any) {
	p.odd = append(p.odd, path+": "+fmt.Sprintf(format, args...))
}

// fail keeps the first error, with the path of the member.
func (p *parser) fail(path, format string, args ...any) {
	if p.err == nil {
		p.err = KeyErrorf(path, "%s: "+format, append([]any{path}, args...)...)
	}
}

// MaxAddresses is the limit of addresses of an attachment; each is compared with the others, and
// the kernel keeps those of a link in a list. maxRoutes is the limit of routes, and of interfaces.
const (
	MaxAddresses = 1000
	maxRoutes    = 10_000
)

// list returns the elements of an array.
func (p *parser) list(path string, raw json.RawMessage) []json.RawMessage {
	return p.upTo(MaxAddresses, path, raw)
}

// upTo is list with a limit of elements.
func (p *parser) upTo(most int, path string, raw json.RawMessage) (elements []json.RawMessage) {
	if raw != nil && raw[0] != '[' {
		p.fail(path, "%s where an array is expected", kindOf(raw[0]))
		return nil
	}
	if len(raw) > 2*most { // an element has at least one byte and a comma
		if n := count(raw); n > most {
			p.fail(path, "%d elements, and at most %d are taken", n, most)
			return nil
		}
	}
	if raw != nil {
		json.Unmarshal(raw, &elements) // valid array
	}
	return elements
}

// count returns the number of elements of an array.
func count(raw json.RawMessage) (n int) {
	Walk(raw, func(node *Node) bool {
		n = node.Index
		return node.Up == nil
	})
	return n + 1
}

// fields are the members of an object that have not been read yet.
type fields map[string]json.RawMessage

// object returns the members of an object.
func (p *parser) object(path string, raw json.RawMessage) fields {
	if isNull(raw) {
		return nil
	}
	return p.element(path, raw)
}

// element is object for an element of a list, which must not be null.
func (p *parser) element(path string, raw json.RawMessage) (f fields) {
	if raw[0] != '{' {
		p.fail(path, "%s where an object is expected", kindOf(raw[0]))
		return nil
	}
	json.Unmarshal(raw, &f) // valid object
	return f
}

// take removes a key, in any letter case, and returns its value; nil if it is absent or null. Of
// several spellings the given one counts, else the last in order.
func (f fields) take(key string) json.RawMessage {
	value, found := f[key]
	last := ""
	for k, v := range f {
		if !strings.EqualFold(k, key) {
			continue
		}
		if !found && k >= last {
			value, last = v, k
		}
		delete(f, k)
	}
	if string(value) == "null" {
		return nil
	}
	return value
}

// rest returns the members that were not taken; nil if there are none.
func (f fields) rest() members {
	if len(f) == 0 {
		return nil
	}
	return members(f)
}

// iface reads an element of interfaces, which must have a name.
func (p *parser) iface(path string, raw json.RawMessage) Interface {
	f := p.element(path, raw)
	i := Interface{
		Name:       p.str(path+".name", f.take("name")),
		MAC:        p.mac(path+".mac", f.take("mac")),
		MTU:        p.num(path+".mtu", f.take("mtu")),
		Sandbox:    p.str(path+".sandbox", f.take("sandbox")),
		SocketPath: p.str(path+".socketPath", f.take("socketPath")),
		PCIID:      p.str(path+".pciID", f.take("pciID")),
		extra:      f.rest(),
	}
	if i.Name == "" {
		p.fail(path+".name", "missing")
	}
	if i.MTU != 0 && (i.MTU < minMTU || i.MTU > maxMTU) && i.Name != "lo" { // lo has 65536
		p.note(path+".mtu", "%d is not within %d to %d: left out", i.MTU, minMTU, maxMTU)
	}
	return i
}

// ip reads an element of ips. The address determines its version, whatever the version member of
// older versions says.
func (p *parser) ip(path string, raw json.RawMessage, interfaces int) IP {
	f := p.element(path, raw)
	version := f.take("version")
	index := f.take("interface")
	ip := p.address(path, "address", f)
	if is4 := ip.Address.Addr().Is4(); is4 && string(version) == `"6"` || !is4 && string(version) == `"4"` {
		p.note(path+".version", "%s is not that of %s", version, ip.Address)
	}
	if index == nil || string(index) == "-1" {
		return ip
	}
	n := p.num(path+".interface", index)
	switch {
	case n < interfaces:
	case p.anyIndex:
		p.note(path+".interface", "%s: left out", outside(n, interfaces))
	default:
		p.fail(path+".interface", "%s", outside(n, interfaces))
	}
	ip.Interface = &n
	return ip
}

// address reads an address, under the name that the version has for it, and its gateway.
func (p *parser) address(path, name string, f fields) IP {
	return IP{
		Address: p.prefix(path+"."+name, f.take(name)),
		Gateway: p.addr(path+".gateway", f.take("gateway")),
		extra:   f.rest(),
	}
}

// outside is the text for an index outside the list of interfaces.
func outside(n, interfaces int) string {
	return fmt.Sprintf("%d is outside the list of %d interfaces", n, interfaces)
}

// family reads ip4 or ip6 of the versions below 0.3.0. Routes get no gateway here: the plugin that
// sets them uses the gateway of their family.
func (p *parser) family(r *Result, path string, raw json.RawMessage) {
	if raw == nil {
		return
	}
	f := p.element(path, raw)
	routes := f.take("routes")
	own := func(key string, dst netip.Prefix) {
		if dst.IsValid() && dst.Addr().Is4() != (path == "ip4") {
			p.note(key, "%s is of the other family, and counts for that", dst)
		}
	}
	ip := p.address(path, "ip", f)
	own(path+".ip", ip.Address)
	r.IPs = append(r.IPs, ip)
	for i, raw := range p.upTo(maxRoutes, path+".routes", routes) {
		rt := p.route(ElementKey(path+".routes", i), raw)
		own(ElementKey(path+".routes", i)+".dst", rt.Dst)
		r.Routes = append(r.Routes, rt)
	}
}

// route reads an element of routes. Host bits of the destination stay, as in
// the reference.
func (p *parser) route(path string, raw json.RawMessage) Route {
	f := p.element(path, raw)
	r := Route{
		Dst:      p.prefix(path+".dst", f.take("dst")),
		GW:       p.addr(path+".gw", f.take("gw")),
		MTU:      p.num(path+".mtu", f.take("mtu")),
		AdvMSS:   p.num(path+".advmss", f.take("advmss")),
		Priority: p.num(path+".priority", f.take("priority")),
		Table:    p.optNum(path+".table", f.take("table")),
		Scope:    p.scope(path+".scope", f.take("scope")),
		extra:    f.rest(),
	}
	if r.MTU != 0 && (r.MTU < minMTU || r.MTU > maxMTU) {
		p.fail(path+".mtu", "%d is not within %d to %d", r.MTU, minMTU, maxMTU)
	}
	return r
}

// dns reads the dns of a result or of a configuration. A name server is an address, which
// may have a zone.
func (p *parser) dns(path string, raw json.RawMessage) DNS {
	f := p.object(path, raw)
	dns := p.dnsOf(path, f)
	dns.extra = f.rest()
	return dns
}

// dnsOf reads the known members of dns.
func (p *parser) dnsOf(path string, f fields) DNS {
	return DNS{
		Nameservers: p.servers(path+".nameservers", f.take("nameservers")),
		Domain:      p.str(path+".domain", f.take("domain")),
		Search:      p.strs(path+".search", f.take("search")),
		Options:     p.strs(path+".options", f.take("options")),
	}
}

// servers reads a list of addresses of name servers.
func (p *parser) servers(path string, raw json.RawMessage) []string {
	list := p.strs(path, raw)
	for i, s := range list {
		if _, err := netip.ParseAddr(s); err != nil {
			p.fail(ElementKey(path, i), "%q is not an IP address", s)
		}
	}
	return list
}

// mac reads the link layer address of any link, as it is written.
func (p *parser) mac(path string, raw json.RawMessage) string {
	text := p.str(path, raw)
	if text == "" || p.err != nil {
		return text
	}
	if _, err := HardwareAddr(text); err != nil && !octets(text, 4, 8, 16) {
		p.fail(path, "%q is not a MAC address", text)
	}
	return text
}

// octets reports whether a text has one of these numbers of octets, separated by colons: IP tunnels
// have 4 and 16, an EUI-64 has 8.
func octets(text string, counts ...int) bool {
	list := strings.Split(text, ":")
	for _, o := range list {
		if _, err := strconv.ParseUint(o, 16, 8); err != nil || len(o) != 2 {
			return false
		}
	}
	return slices.Contains(counts, len(list))
}

// str reads a string; an absent one is empty.
func (p *parser) str(path string, raw json.RawMessage) (s string) {
	if raw != nil && raw[0] != '"' {
		p.fail(path, "%s where a string is expected", kindOf(raw[0]))
	} else if raw != nil {
		json.Unmarshal(raw, &s) // valid string
	}
	return s
}

// strs reads a list of strings; nil if it is absent. An empty list in a configuration replaces
// another.
func (p *parser) strs(path string, raw json.RawMessage) []string {
	if raw == nil {
		return nil
	}
	list := []string{}
	for i, e := range p.list(path, raw) {
		list = append(list, p.str(ElementKey(path, i), e))
	}
	return list
}

// num reads a non-negative integer of up to 32 bits, as in the kernel. Exponents and fractions are
// rejected, even if the value is whole.
func (p *parser) num(path string, raw json.RawMessage) int {
	if raw == nil {
		return 0
	}
	n, err := strconv.ParseUint(string(raw), 10, 32)
	if err != nil || n > math.MaxInt { // int may have 32 bits
		p.fail(path, "%.40s is not an integer from 0 to 4294967295", raw)
	}
	return int(n)
}

// optNum is num where 0 and absence differ; nil if it is absent.
func (p *parser) optNum(path string, raw json.RawMessage) *int {
	if raw == nil {
		return nil
	}
	return new(p.num(path, raw))
}

// scope reads RT_SCOPE_*, include/uapi/linux/rtnetlink.h: a byte, of which 255 is nowhere.
func (p *parser) scope(path string, raw json.RawMessage) *int {
	n := p.optNum(path, raw)
	if n != nil && *n > 254 {
		p.fail(path, "%d is not a scope of a route: 0 (universe) to 254 (host), as 253 (link)", *n)
	}
	return n
}

// addr reads an address without a zone; an IPv4-mapped one becomes IPv4. The zero Addr means unset
// or empty.
func (p *parser) addr(path string, raw json.RawMessage) netip.Addr {
	text := p.str(path, raw)
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		p.fail(path, "%q is not an IP address", text)
	}
	return a.Unmap()
}

// prefix reads an address with its prefix length, which is required. An IPv4-mapped address becomes
// IPv4, as in the reference.
func (p *parser) prefix(path string, raw json.RawMessage) netip.Prefix {
	if raw == nil {
		p.fail(path, "missing")
		return netip.Prefix{}
	}
	text := p.str(path, raw)
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		p.fail(path, "%q is not %s", text, prefixForm(path))
		return netip.Prefix{}
	}
	if !prefix.Addr().Is4In6() {
		return prefix
	}
	if prefix.Bits() < 96 {
		p.fail(path, "%q is wider than all IPv4 addresses", text)
	}
	return netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
}
