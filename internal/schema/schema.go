// Package schema compares configurations and results with the JSON schemas of the CNI
// specification. Plugins and runtimes accept more than that, see [spec.NewRequest] and
// [spec.ParseResult].
package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Problem is a value of a document that violates its JSON schema.
type Problem struct {
	Path string // as in ips[0].address; empty: the document itself
	Text string
}

// String returns the problem as one line.
func (p Problem) String() string {
	if p.Path == "" {
		return p.Text
	}
	return p.Path + ": " + p.Text
}

// CheckResult compares a result with the schema of results: names, types,
// patterns and bounds, and that indexes are within the list of interfaces.
// Names are case sensitive, unlike in plugins.
func CheckResult(doc []byte) []Problem { return checkDoc(doc, resultRule()) }

// CheckConf compares the configuration of one plugin with the schema of
// network configurations.
// Unknown members are no problem: plugins have keys of their own.
func CheckConf(doc []byte) []Problem { return checkDoc(doc, confRule()) }

// A rule is the schema of a value. Members of an object without a rule are free. Only the fields for
// the kind are used; their zero values allow all.
type rule struct {
	kind     string           // array, boolean, integer, object or string
	required []string         // of an object
	members  map[string]*rule // of an object
	others   *rule            // all further members of an object
	items    *rule            // of an array
	min, max int64            // of an integer, or the characters of a string; max 0: none
	// What is wrong with a string; empty: nothing.
	text  func(string) string
	whole func(c *checker, path string, v any) // of several members together
}

// checkDoc decodes a document and compares it with a rule. Numbers stay text,
// so that large ones keep their value.
func checkDoc(doc []byte, r *rule) []Problem {
	var raw json.RawMessage
	if err := json.Unmarshal(doc, &raw); err != nil { // unlike a Decoder it reads to the end
		return []Problem{{"", "not JSON: " + err.Error()}}
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	d.Decode(&v) // is JSON
	c := &checker{}
	c.check("", v, r)
	return c.found
}

// at names an element of a list.
func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// A checker gathers problems, in the order of names.
type checker struct{ found []Problem }

// add notes a problem at a path.
func (c *checker) add(path, format string, args ...any) {
	c.found = append(c.found, Problem{path, fmt.Sprintf(format, args...)})
}

// check compares one value with its rule.
// A value of the wrong type has that one problem: nothing else in it is looked at.
func (c *checker) check(path string, v any, r *rule) {
	kind := jsonKind(v)
	if kind != r.kind {
		c.add(path, "is %s, not %s", kind, r.kind)
		return
	}
	switch v := v.(type) {
	case map[string]any:
		c.object(path, v, r)
	case []any:
		for i, e := range v {
			c.check(at(path, i), e, r.items)
		}
	case string:
		c.string(path, v, r)
	case json.Number:
		if n := integer(v); n < r.min || r.max != 0 && n > r.max {
			c.add(path, "%s is out of bounds (least %d, most %d)", v, r.min, r.max)
		}
	}
	if r.whole != nil {
		r.whole(c, path, v)
	}
}

// object looks for what is missing, then at each member that has a rule.
// Members without any rule are free.
func (c *checker) object(path string, v map[string]any, r *rule) {
	for _, name := range r.required {
		if _, ok := v[name]; !ok {
			c.add(path, "%q is missing", name)
		}
	}
	names := make([]string, 0, len(v))
	for name := range v {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m := r.members[name]
		if m == nil {
			m = r.others
		}
		if m != nil {
			c.check(strings.TrimPrefix(path+"."+name, "."), v[name], m)
		}
	}
}

// string checks the length, in characters, and the text.
// Characters are code points, as JSON schemas count them.
func (c *checker) string(path, s string, r *rule) {
	n := int64(utf8.RuneCountInString(s))
	if n < r.min || r.max != 0 && n > r.max {
		c.add(path, "has %d characters (least %d, most %d)", n, r.min, r.max)
	}
	if r.text == nil {
		return
	}
	if problem := r.text(s); problem != "" {
		c.add(path, "%q %s", s, problem)
	}
}

// jsonKind names the type of a decoded value as JSON schemas do; 1.0 is an
// integer there.
func jsonKind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case json.Number:
		if f, err := strconv.ParseFloat(string(v), 64); err == nil && f == math.Trunc(f) {
			return "integer"
		}
	}
	return "number"
}

// integer returns the value of a number of kind integer; beyond 64 bits it is
// the nearest there is.
// Bounds are far within, so the nearest is on the same side of them.
func integer(n json.Number) int64 {
	if i, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return i
	}
	f, _ := strconv.ParseFloat(string(n), 64)
	switch {
	case f >= math.MaxInt64:
		return math.MaxInt64
	case f <= math.MinInt64:
		return math.MinInt64
	}
	return int64(f)
}

// indexes checks that ips[].interface is an index into the list of interfaces, which the schema
// states in a description.
func indexes(c *checker, path string, v any) {
	doc := v.(map[string]any)
	interfaces, _ := doc["interfaces"].([]any)
	ips, _ := doc["ips"].([]any)
	for i, e := range ips {
		ip, _ := e.(map[string]any)
		n, ok := ip["interface"].(json.Number)
		if ok && jsonKind(n) == "integer" && integer(n) >= int64(len(interfaces)) {
			c.add(strings.TrimPrefix(path+"."+at("ips", i)+".interface", "."),
				"%s is outside the list of %d interfaces", n, len(interfaces))
		}
	}
}

// The patterns of the schemas: each function returns what is wrong; empty: nothing.

// versionText is the pattern of cniVersion: exactly three numbers, which is
// stricter than [spec.ParseVersion].
func versionText(s string) string {
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(s) {
		return "is not three numbers with dots between them"
	}
	return ""
}

// nameText is the pattern of a network's name.
func nameText(s string) string {
	if !regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`).MatchString(s) {
		return "is not a letter or digit followed by letters, digits, _, . and -"
	}
	return ""
}

// macText is the pattern of mac: six octets, so not InfiniBand's twenty.
// Letters may be of either case. Hyphens and dots, which [spec.ParseMAC] takes, are not.
func macText(s string) string {
	if !regexp.MustCompile(`^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$`).MatchString(s) {
		return "is not six octets in hexadecimal with colons between them"
	}
	return ""
}

// addrText takes an address of either family.
func addrText(s string) string {
	if _, err := netip.ParseAddr(s); err != nil {
		return "is not an IP address"
	}
	return ""
}

// prefixText takes an address with a prefix length.
func prefixText(s string) string {
	if _, err := netip.ParsePrefix(s); err != nil {
		return "is not an IP address with a prefix length"
	}
	return ""
}

// protocolText is the list of protocols of a port mapping.
func protocolText(s string) string {
	if s != "tcp" && s != "udp" && s != "sctp" {
		return "is not tcp, udp or sctp"
	}
	return ""
}
