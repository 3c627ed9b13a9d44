package spec

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// A Node is a value of a JSON document: the document itself, a member or an element. It is valid
// only during its call of visit; its key is built when it is requested.
type Node struct {
	Up    *Node  // the containing value; nil: this is the document
	Index int    // of an element
	name  []byte // of a member; nil: none

	Start, Value int // offsets of the name (of an element: of the value), and of the value
	Depth        int // 0: the document
}

// Name returns the name of a member; false: the value is not a member.
func (n *Node) Name() (name string, ok bool) { return string(n.name), n.name != nil }

// longestName is the length limit of a name in a key, in bytes.
const longestName = 200

// Key returns the key as in messages: plugins[0].ipam.subnet. Long names are cut.
func (n *Node) Key() string {
	var parts []string
	for ; n.Up != nil; n = n.Up {
		name := string(n.name)
		if len(name) > longestName {
			name = strings.ToValidUTF8(name[:longestName], "") + "…"
		}
		switch {
		case n.name == nil:
			parts = append(parts, "["+strconv.Itoa(n.Index)+"]")
		case n.Up.Up == nil:
			parts = append(parts, name)
		default:
			parts = append(parts, "."+name)
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, "")
}

// Text returns the value of a string.
func (n *Node) Text(doc []byte) (text string, ok bool) {
	if doc[n.Value] != '"' {
		return "", false
	}
	raw, _, ok := (&walker{doc: doc, at: n.Value}).string()
	return string(raw), ok
}

// Walk calls visit for the values of a JSON document in their order, up to a syntax error. It
// visits the values in a value if visit returns true for that, down to the depth limit.
func Walk(doc []byte, visit func(n *Node) bool) {
	w := &walker{doc: doc, visit: visit}
	w.value(&Node{})
}

// Find returns the value of a key, the last one if there are several; if no key has this spelling,
// the first one in other letter case.
func Find(doc []byte, key string) (*Node, bool) {
	var found []Node // with its parents, the innermost first
	exact := false
	below := []rest{restOf(key, true)} // of the key, for the values in a value, by depth
	Walk(doc, func(n *Node) bool {
		var r rest
		if n.Up == nil {
			r = below[0]
		} else {
			above := below[n.Depth-1]
			remains, same, matches := above.without(n)
			if !matches || exact && !same {
				return false
			}
			r = restOf(remains, above.exact && same)
			below = append(below[:n.Depth], r)
		}
		if r.key != "" {
			return true
		}
		if r.exact || found == nil {
			found = found[:0]
			for around := n; around != nil; around = around.Up {
				found = append(found, *around)
			}
			exact = r.exact
		}
		return false
	})
	if found == nil {
		return nil, false
	}
	for i := range found[1:] {
		found[i].Up = &found[i+1]
	}
	return &found[0], true
}

// Nearest is [Find] for a key that may be missing: it returns the value of the nearest one that contains
// it. False: the document is empty.
func Nearest(doc []byte, key string) (*Node, bool) {
	for ; key != ""; key = key[:max(0, strings.LastIndexAny(key, ".["))] {
		if n, ok := Find(doc, key); ok {
			return n, true
		}
	}
	return Find(doc, "")
}

// A rest is the part of a key that remains inside a value.
type rest struct {
	key   string
	index int    // the index at its beginning; -1: it begins with a name
	after string // the index
	exact bool   // the spelling matches the document so far
}

// restOf parses the index at the beginning of a key.
func restOf(key string, exact bool) rest {
	r := rest{key: key, index: -1, exact: exact}
	if strings.HasPrefix(key, "[") {
		text, after, _ := strings.Cut(key[1:], "]")
		if n, err := strconv.Atoi(text); err == nil {
			r.index, r.after = n, strings.TrimPrefix(after, ".")
		}
	}
	return r
}

// without removes the name or the index of a value, which may have other letter case.
func (r *rest) without(n *Node) (key string, same, ok bool) {
	if n.name == nil {
		return r.after, true, r.index == n.Index
	}
	long := len(n.name)
	if len(r.key) < long || !strings.EqualFold(r.key[:long], string(n.name)) {
		return "", false, false
	}
	same, key = r.key[:long] == string(n.name), r.key[long:]
	switch {
	case key == "":
	case key[0] == '.':
		key = key[1:]
	case key[0] != '[':
		return "", false, false
	}
	return key, same, true
}

// A walker is the state of one Walk.
type walker struct {
	doc   []byte
	at    int
	visit func(n *Node) bool
}

// next skips blanks and returns the next byte; 0: the end.
func (w *walker) next() byte {
	for ; w.at < len(w.doc); w.at++ {
		switch c := w.doc[w.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// value reads a value. False: the document ends there, or is not JSON.
func (w *walker) value(n *Node) bool {
	c := w.next()
	if c == 0 {
		return false
	}
	n.Value = w.at
	if n.name == nil {
		n.Start = w.at
	}
	if in := w.visit(n); !in || n.Depth >= maxDepth || c != '{' && c != '[' {
		return w.skip()
	}
	w.at++
	inner := Node{Up: n, Depth: n.Depth + 1}
	for ; ; inner.Index++ {
		switch d := w.next(); {
		case d == c+2: // the codes of } and ] are those of { and [ plus two
			w.at++
			return true
		case inner.Index == 0:
		case d != ',':
			return false
		default:
			w.at++
			w.next()
		}
		if c == '{' {
			ok := false
			if inner.name, inner.Start, ok = w.string(); !ok || w.next() != ':' {
				return false
			}
			w.at++
		}
		if !w.value(&inner) {
			return false
		}
	}
}

// string reads a string and returns its decoded text and its offset.
func (w *walker) string() (text []byte, start int, ok bool) {
	start = w.at
	if start >= len(w.doc) || w.doc[start] != '"' || !w.skip() {
		return nil, start, false
	}
	text = w.doc[start+1 : w.at-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		var meant string
		if json.Unmarshal(w.doc[start:w.at], &meant) != nil {
			return nil, start, false
		}
		text = []byte(meant)
	}
	return slices.Clip(text), start, true
}

// skip skips a value and its content.
func (w *walker) skip() bool {
	for open := 0; w.at < len(w.doc); {
		c := w.doc[w.at]
		w.at++
		switch c {
		case '"':
			for ; w.at < len(w.doc) && w.doc[w.at] != '"'; w.at++ {
				if w.doc[w.at] == '\\' {
					w.at++
				}
			}
			w.at++
		case '{', '[':
			open++
		case '}', ']':
			open--
		case ' ', '\t', '\r', '\n', ',', ':':
			continue
		default:
			for w.at < len(w.doc) && strings.IndexByte(" \t\r\n,:{}[]\"", w.doc[w.at]) < 0 {
				w.at++
			}
		}
		if open <= 0 {
			return open == 0 && w.at <= len(w.doc)
		}
	}
	return false
}
