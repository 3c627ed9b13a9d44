package spec

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
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
	if err := unmarshalObject(b, new(struct{})); err != nil {
		return nil, Errorf(CodeDecode, "result: %w", err)
	}
	r, err := readResult(b, conf)
	if err == nil {
		err = r.checkIndexes()
	}
	if err != nil {
		return nil, Errorf(CodeConfig, "result: %w", err)
	}
	return r, nil
}

// ParseIPAM reads the routes and the DNS of an "ipam" key, which have the same form as in results; nil is none. Errors
// have code 7.
func ParseIPAM(routes, dns json.RawMessage) (*Result, error) {
	r := &Result{}
	err := list("ipam.routes", routes, maxRoutes, r.addRoute)
	if err == nil {
		r.DNS, err = readDNS("ipam.dns", dns)
	}
	if err == nil {
		err = r.checkGateways("ipam")
	}
	if err != nil {
		return nil, Errorf(CodeConfig, "%w", err)
	}
	return r, nil
}

// A wireResult has the members of a result in all versions.
type wireResult struct {
	CNIVersion string          `json:"cniVersion"`
	Interfaces json.RawMessage `json:"interfaces"`
	IP4        json.RawMessage `json:"ip4"` // below 0.3.0
	IP6        json.RawMessage `json:"ip6"` // below 0.3.0
	IPs        json.RawMessage `json:"ips"`
	IP         json.RawMessage `json:"ip"` // ips in the text of 0.3.0; in other versions an unknown member
	Routes     json.RawMessage `json:"routes"`
	DNS        json.RawMessage `json:"dns"`
}

// readResult reads a result, which is a JSON object. An index may be outside the list of interfaces. Errors have no
// code; the caller knows whether they are about a plugin's answer or a configuration.
func readResult(raw json.RawMessage, conf Version) (*Result, error) {
	var w wireResult
	extra, err := decodeObject("", raw, &w)
	if err != nil {
		return nil, err
	}
	version, err := resultVersion(w.CNIVersion, conf)
	if err != nil {
		return nil, err
	}
	r := &Result{extra: extra}
	switch {
	case version == V030 && isNull(w.IPs):
		w.IPs = w.IP
	case version != V030 && w.IP != nil:
		if r.extra == nil {
			r.extra = members{}
		}
		r.extra["ip"] = w.IP
	}
	err = cmp.Or(
		list("interfaces", w.Interfaces, maxRoutes, r.addInterface),
		r.addFamily("ip4", w.IP4),
		r.addFamily("ip6", w.IP6),
		list("ips", w.IPs, MaxAddresses, r.addIP),
		list("routes", w.Routes, maxRoutes, r.addRoute),
	)
	if err == nil {
		r.DNS, err = readDNS("dns", w.DNS)
	}
	if err != nil {
		return nil, err
	}
	r.eachOutside(func(key, text string) { r.note(key, "%s: left out", text) })
	r.eachMixed("", func(key, text string) { r.note(key, "%s", text) })
	return r, nil
}

// resultVersion returns the version of a result: its own if it has one, else conf. An unknown
// version is an error, since its form may differ.
func resultVersion(text string, conf Version) (Version, error) {
	if text == "" {
		return conf, nil
	}
	if !isSupported(text, Version{}) {
		return Version{}, fmt.Errorf("unsupported CNI result version %q", text)
	}
	return ParseVersion(text)
}

// note records a member that is read otherwise than it is written, or left out; see [Result.TakeOdd].
func (r *Result) note(key, format string, args ...any) {
	r.odd = append(r.odd, key+": "+fmt.Sprintf(format, args...))
}

// wrong returns an error about the value of a key.
func wrong(key, format string, args ...any) error {
	return KeyErrorf(key, "%s: "+format, append([]any{key}, args...)...)
}

// decodeObject decodes a JSON object into a struct, and returns the members for which that has no field.
func decodeObject(key string, raw json.RawMessage, into any) (unknown members, err error) {
	if isNull(raw) {
		return nil, wrong(key, "null where an object is expected")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(into) == nil {
		return nil, nil
	}
	if err := Unmarshal(key, raw, into); err != nil {
		return nil, err
	}
	json.Unmarshal(raw, &unknown) // an object
	t := reflect.TypeOf(into).Elem()
	maps.DeleteFunc(unknown, func(name string, _ json.RawMessage) bool { return memberType(t, name) != nil })
	return unknown, nil
}

// MaxAddresses is the limit of addresses of an attachment; each is compared with the others, and
// the kernel keeps those of a link in a list. maxRoutes is the limit of routes, and of interfaces.
const (
	MaxAddresses = 1000
	maxRoutes    = 10_000
)

// list calls add for each element of an array, which may be absent, with its key.
func list(key string, raw json.RawMessage, most int, add func(key string, raw json.RawMessage) error) error {
	if len(raw) > 2*most && raw[0] == '[' { // an element has at least one byte and a comma
		if n := count(raw); n > most {
			return tooMany(key, n, most)
		}
	}
	var elements []json.RawMessage
	if err := optional(key, raw, &elements); err != nil {
		return err
	}
	for i, e := range elements {
		if err := add(ElementKey(key, i), e); err != nil {
			return err
		}
	}
	return nil
}

// tooMany returns the error for an array with too many elements.
func tooMany(key string, n, most int) error {
	return wrong(key, "%d elements, and at most %d are taken", n, most)
}

// count returns the number of elements of an array.
func count(raw json.RawMessage) (n int) {
	Walk(raw, func(node *Node) bool {
		n = node.Index
		return node.Up == nil
	})
	return n + 1
}

// addInterface reads an element of interfaces, which must have a name.
func (r *Result) addInterface(key string, raw json.RawMessage) (err error) {
	var i Interface
	if i.extra, err = decodeObject(key, raw, &i); err != nil {
		return err
	}
	if i.Name == "" {
		return wrong(key+".name", "missing")
	}
	if i.MTU != 0 && (i.MTU < minMTU || i.MTU > maxMTU) && i.Name != "lo" { // lo has 65536
		r.note(key+".mtu", "%d is not within %d to %d: left out", i.MTU, minMTU, maxMTU)
	}
	r.Interfaces = append(r.Interfaces, i)
	return cmp.Or(checkMAC(key+".mac", i.MAC), checkNumber(key+".mtu", &i.MTU))
}

// addIP reads an element of ips. The address determines its version, whatever the version member of
// older versions says.
func (r *Result) addIP(key string, raw json.RawMessage) error {
	var w struct {
		IP
		Version json.RawMessage `json:"version"`
	}
	unknown, err := decodeObject(key, raw, &w)
	if err != nil {
		return err
	}
	ip := w.IP
	ip.extra = unknown
	if err := ip.normalize(key, "address"); err != nil {
		return err
	}
	if is4 := ip.Address.Addr().Is4(); is4 && string(w.Version) == `"6"` || !is4 && string(w.Version) == `"4"` {
		r.note(key+".version", "%s is not that of %s", w.Version, ip.Address)
	}
	if ip.Interface != nil && *ip.Interface == -1 {
		ip.Interface = nil
	}
	r.IPs = append(r.IPs, ip)
	return checkNumber(key+".interface", ip.Interface)
}

// addFamily reads ip4 or ip6 of the versions below 0.3.0, which may be absent. Routes get no gateway here: the plugin
// that sets them uses the gateway of their family.
func (r *Result) addFamily(key string, raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	var w struct {
		IP      netip.Prefix    `json:"ip"`
		Gateway netip.Addr      `json:"gateway"`
		Routes  json.RawMessage `json:"routes"`
	}
	unknown, err := decodeObject(key, raw, &w)
	if err != nil {
		return err
	}
	own := func(key string, dst netip.Prefix) {
		if dst.Addr().Is4() != strings.HasPrefix(key, "ip4") {
			r.note(key, "%s is of the other family, and counts for that", dst)
		}
	}
	ip := IP{Address: w.IP, Gateway: w.Gateway, extra: unknown}
	if err := ip.normalize(key, "ip"); err != nil {
		return err
	}
	own(key+".ip", ip.Address)
	r.IPs = append(r.IPs, ip)
	return list(key+".routes", w.Routes, maxRoutes, func(key string, raw json.RawMessage) error {
		if err := r.addRoute(key, raw); err != nil {
			return err
		}
		own(key+".dst", r.Routes[len(r.Routes)-1].Dst)
		return nil
	})
}

// normalize checks the address, under the name that the version has for it, and its gateway.
func (ip *IP) normalize(key, name string) error {
	return cmp.Or(normalizePrefix(key+"."+name, &ip.Address), normalizeAddr(key+".gateway", &ip.Gateway))
}

// addRoute reads an element of routes. Host bits of the destination stay, as in
// the reference.
func (r *Result) addRoute(key string, raw json.RawMessage) (err error) {
	var rt Route
	if rt.extra, err = decodeObject(key, raw, &rt); err != nil {
		return err
	}
	err = cmp.Or(
		normalizePrefix(key+".dst", &rt.Dst),
		normalizeAddr(key+".gw", &rt.GW),
		checkNumber(key+".advmss", &rt.AdvMSS),
		checkNumber(key+".priority", &rt.Priority),
		checkNumber(key+".table", rt.Table),
		checkNumber(key+".scope", rt.Scope),
	)
	switch {
	case err != nil:
		return err
	case rt.MTU != 0 && (rt.MTU < minMTU || rt.MTU > maxMTU):
		return wrong(key+".mtu", "%d is not within %d to %d", rt.MTU, minMTU, maxMTU)
	case rt.Scope != nil && *rt.Scope > 254: // RT_SCOPE_*, include/uapi/linux/rtnetlink.h: a byte, of which 255 is nowhere
		return wrong(key+".scope", "%d is not a scope of a route: 0 (universe) to 254 (host), as 253 (link)", *rt.Scope)
	}
	r.Routes = append(r.Routes, rt)
	return nil
}

// readDNS reads the dns of a result or of a configuration, which may be absent.
func readDNS(key string, raw json.RawMessage) (dns DNS, err error) {
	if isNull(raw) {
		return dns, nil
	}
	dns.extra, err = decodeObject(key, raw, &dns)
	return dns, cmp.Or(err, dns.check(key))
}

// check checks the lists. A name server is an address, which may have a zone.
func (d DNS) check(key string) error {
	for name, list := range map[string][]string{"nameservers": d.Nameservers, "search": d.Search, "options": d.Options} {
		if len(list) > MaxAddresses {
			return tooMany(key+"."+name, len(list), MaxAddresses)
		}
	}
	return checkServers(key+".nameservers", d.Nameservers)
}

// checkServers checks addresses of name servers.
func checkServers(key string, servers []string) error {
	for i, s := range servers {
		if _, err := netip.ParseAddr(s); err != nil {
			return wrong(ElementKey(key, i), "%q is not an IP address", s)
		}
	}
	return nil
}

// checkMAC checks the link layer address of any link; empty: none.
func checkMAC(key, text string) error {
	if _, err := HardwareAddr(text); err != nil && text != "" && !octets(text, 4, 8, 16) {
		return wrong(key, "%q is not a MAC address", text)
	}
	return nil
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

// checkNumber checks an integer of up to 32 bits, as in the kernel; nil: none.
func checkNumber(key string, n *int) error {
	if n != nil && (*n < 0 || int64(*n) > math.MaxUint32) {
		return wrong(key, "%d is not an integer from 0 to 4294967295", *n)
	}
	return nil
}

// normalizeAddr checks an address without a zone; an IPv4-mapped one becomes IPv4.
func normalizeAddr(key string, a *netip.Addr) error {
	if a.Zone() != "" {
		return wrong(key, "%q is not an IP address", a)
	}
	*a = a.Unmap()
	return nil
}

// normalizePrefix checks an address with its prefix length, which is required. An IPv4-mapped address becomes
// IPv4, as in the reference.
func normalizePrefix(key string, p *netip.Prefix) error {
	switch {
	case !p.IsValid():
		return wrong(key, "missing")
	case !p.Addr().Is4In6():
		return nil
	case p.Bits() < 96:
		return wrong(key, "%q is wider than all IPv4 addresses", p)
	}
	*p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	return nil
}
