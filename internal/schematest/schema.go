// Package schematest compares results with the JSON schema of the CNI specification, for tests.
// Runtimes accept more than that, see [spec.ParseResult].
package schematest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// A rule is the schema of a value. Members without a rule may have any value. Only the fields for the
// kind are used; their zero values allow everything.
type rule struct {
	kind     string           // array, boolean, integer, object or string
	required []string         // of an object
	members  map[string]*rule // of an object
	items    *rule            // of an array
	min, max int64            // of an integer; max 0: none
	// Returns what is wrong with a string; empty: nothing.
	text  func(string) string
	whole func(c *checker, members map[string]json.RawMessage) // checks several members together
}

// checkDoc compares a document with a rule.
func checkDoc(doc []byte, r *rule) []Problem {
	var raw json.RawMessage
	if err := json.Unmarshal(doc, &raw); err != nil { // unlike a Decoder it reads to the end
		return []Problem{{"", "not JSON: " + err.Error()}}
	}
	c := &checker{}
	c.check(raw, r)
	for i := range c.found {
		c.found[i].Path = strings.TrimPrefix(c.found[i].Path, ".")
	}
	return c.found
}

// at names an element of a list.
func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// most is the number of problems after which checking stops.
const most = 20

// A checker collects problems in the order of names. Paths begin at the value that is checked; inner
// puts the path of that value in front.
type checker struct{ found []Problem }

func (c *checker) add(path, format string, args ...any) {
	c.found = append(c.found, Problem{path, fmt.Sprintf(format, args...)})
}

// inner checks a member or an element; path returns its path in the enclosing value.
func (c *checker) inner(path func() string, raw json.RawMessage, r *rule) {
	before := len(c.found)
	if before >= most {
		return
	}
	c.check(raw, r)
	for i := before; i < len(c.found); i++ {
		c.found[i].Path = path() + c.found[i].Path
	}
}

// check compares one JSON value with its rule. It decodes only what has a rule. A value of the wrong
// type is one problem: its content is not checked.
func (c *checker) check(raw json.RawMessage, r *rule) {
	kind := jsonKind(raw)
	if kind != r.kind {
		c.add("", "is %s, not %s", kind, r.kind)
		return
	}
	switch kind {
	case "object":
		c.object(raw, r)
	case "array":
		var elements []json.RawMessage
		json.Unmarshal(raw, &elements)
		for i, e := range elements {
			c.inner(func() string { return at("", i) }, e, r.items)
		}
	case "string":
		var s string
		json.Unmarshal(raw, &s)
		c.string(s, r)
	case "integer":
		if n := integer(raw); n < r.min || r.max != 0 && n > r.max {
			c.add("", "%s is out of bounds (least %d, most %d)", raw, r.min, r.max)
		}
	}
}

// object checks for missing members, then each member that has a rule.
func (c *checker) object(raw json.RawMessage, r *rule) {
	var members map[string]json.RawMessage
	json.Unmarshal(raw, &members)
	for _, name := range r.required {
		if _, ok := members[name]; !ok {
			c.add("", "%q is missing", name)
		}
	}
	names := make([]string, 0, len(r.members))
	for name := range members {
		if r.members[name] != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		c.inner(func() string { return "." + name }, members[name], r.members[name])
	}
	if r.whole != nil {
		r.whole(c, members)
	}
}

func (c *checker) string(s string, r *rule) {
	if r.text == nil {
		return
	}
	if problem := r.text(s); problem != "" {
		c.add("", "%q %s", s, problem)
	}
}

// jsonKind names the type of a value as JSON schemas do; 1.0 is an integer there.
func jsonKind(raw json.RawMessage) string {
	switch raw[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '[':
		return "array"
	case '{':
		return "object"
	}
	if f, err := strconv.ParseFloat(string(raw), 64); err == nil && f == math.Trunc(f) {
		return "integer"
	}
	return "number"
}

// integer returns the value of an integer, or the nearest int64 beyond 64 bits. The bounds of rules are
// far within these, so comparing with them stays right.
func integer(n json.RawMessage) int64 {
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
func indexes(c *checker, members map[string]json.RawMessage) {
	var interfaces []json.RawMessage
	var ips []map[string]json.RawMessage
	json.Unmarshal(members["interfaces"], &interfaces) // what is not a list has been reported
	json.Unmarshal(members["ips"], &ips)
	for i, ip := range ips {
		n := ip["interface"]
		if len(c.found) < most && n != nil && jsonKind(n) == "integer" && integer(n) >= int64(len(interfaces)) {
			c.add("."+at("ips", i)+".interface", "%s is outside the list of %d interfaces", n, len(interfaces))
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

// macText is the pattern of mac: six octets, so not InfiniBand's twenty, in either case. Hyphens and
// dots, which [spec.ParseMAC] accepts, are invalid.
func macText(s string) string {
	if !regexp.MustCompile(`^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$`).MatchString(s) {
		return "is not six octets in hexadecimal with colons between them"
	}
	return ""
}

// addrText accepts an address of either family.
func addrText(s string) string {
	if _, err := netip.ParseAddr(s); err != nil {
		return "is not an IP address"
	}
	return ""
}

// prefixText accepts an address with a prefix length.
func prefixText(s string) string {
	if _, err := netip.ParsePrefix(s); err != nil {
		return "is not an IP address with a prefix length"
	}
	return ""
}
