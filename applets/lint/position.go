package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// A document is a file with the places of its members and elements.
type document struct {
	raw    []byte
	places []place // in the order of the file
	twice  []place // members whose name their object has had before
	index  map[string]int
}

// A place is where a member or an element is.
type place struct {
	key         string // as plugins[0].ipam.subnet
	name, value int    // offsets; of an element both are the value's
	text        string // of a string, a number or a bool
	again       bool   // it, or what it is in, has a name that its object has had before
}

// newDocument finds the places of a document; of one that is not JSON, as far as it is.
func newDocument(raw []byte) *document {
	d := &document{raw: raw, index: map[string]int{}}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	d.read(dec, place{})
	return d
}

// next is where the token behind the one that was read begins.
func (d *document) next(dec *json.Decoder) int {
	offset := int(dec.InputOffset())
	for offset < len(d.raw) && strings.IndexByte(" \t\r\n,:", d.raw[offset]) >= 0 {
		offset++
	}
	return offset
}

// read reads a value, and what is in it. False ends it: there is no more.
func (d *document) read(dec *json.Decoder, at place) bool {
	at.value = d.next(dec)
	token, err := dec.Token()
	if err != nil {
		return false
	}
	delim, nested := token.(json.Delim)
	if !nested {
		at.text = fmt.Sprint(token)
	}
	if _, ok := d.index[at.key]; ok {
		if !at.again {
			d.twice = append(d.twice, at)
		}
		at.again = true
	} else {
		d.index[at.key] = len(d.places)
		d.places = append(d.places, at)
	}
	if !nested {
		return true
	}
	for i := 0; dec.More(); i++ {
		inner := place{key: fmt.Sprintf("%s[%d]", at.key, i), name: d.next(dec), again: at.again}
		if delim == '{' {
			name, err := dec.Token()
			if err != nil {
				return false
			}
			inner.key = join(at.key, fmt.Sprint(name))
		}
		if !d.read(dec, inner) {
			return false
		}
	}
	_, err = dec.Token()
	return err == nil
}

// nearest returns the place of a key, or of what would have it.
func (d *document) nearest(key string) place {
	for ; key != ""; key = parent(key) {
		if p, ok := d.lookup(key); ok {
			return p
		}
	}
	return d.root()
}

// root is the place of the document itself; one that is empty has it as well.
func (d *document) root() place {
	p, _ := d.lookup("")
	return p
}

// lookup finds a key, in any case of letters.
func (d *document) lookup(key string) (place, bool) {
	if i, ok := d.index[key]; ok {
		return d.places[i], true
	}
	for _, p := range d.places {
		if strings.EqualFold(p.key, key) {
			return p, true
		}
	}
	return place{}, false
}

// has returns the place in a part of the document that has a value, else that of the part.
func (d *document) has(key, value string) place {
	for _, p := range d.places {
		if p.text == value && strings.HasPrefix(p.key, key) {
			return p
		}
	}
	return d.nearest(key)
}

// parent cuts the last part of a key off.
func parent(key string) string { return key[:max(0, strings.LastIndexAny(key, ".["))] }

// last is the last part of a key.
func last(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// line returns line and column of an offset, both from 1.
func (d *document) line(offset int) (line, column int) {
	before := d.raw[:min(offset, len(d.raw))]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

// finding is one at an offset.
func (d *document) finding(file, key string, offset int, text string) *Finding {
	f := &Finding{File: file, Key: key, Message: text}
	f.Line, f.Column = d.line(offset)
	return f
}

// repeated are the members whose name their object has had before.
func (d *document) repeated(file string) (all []*Finding) {
	for _, at := range d.twice {
		all = append(all, d.finding(file, at.key, at.name, fmt.Sprintf("%q is here twice: the last one counts", last(at.key))))
	}
	return all
}

// mistake is where JSON ends being JSON, and why.
func (d *document) mistake(err *json.SyntaxError) (offset int, reason string) {
	at := max(0, int(err.Offset)-1)
	reason = "not JSON: " + err.Error()
	before := bytes.TrimRight(d.raw[:min(at, len(d.raw))], " \t\r\n")
	at = min(at, len(d.raw))
	next := string(d.raw[at:min(at+1, len(d.raw))])
	switch {
	case len(bytes.TrimSpace(d.raw)) == 0:
		return 0, "the file is empty"
	case int(err.Offset) >= len(d.raw) && strings.Contains(reason, "unexpected end"):
		return len(d.raw), "not JSON: the end is missing"
	case bytes.HasSuffix(before, []byte(",")) && (next == "}" || next == "]"):
		return len(before) - 1, fmt.Sprintf("not JSON: a comma before %q: remove it", next)
	case next == "/" || next == "#":
		return at, "not JSON: there are no comments in JSON"
	case strings.Contains(reason, "after object key:value pair"), strings.Contains(reason, "after array element"):
		return at, "not JSON: a comma is missing before this"
	}
	return at, reason
}

// join joins two keys, of which each may be empty.
func join(key, more string) string {
	if key == "" || more == "" || more[0] == '[' {
		return key + more
	}
	return key + "." + more
}
