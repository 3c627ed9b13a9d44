package lint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// A document is a file with the places of its members and elements.
type document struct {
	raw    []byte
	places []place // in the order of the file
	twice  []place // members whose name their object has had before
	index  map[string]int
}

// A place is where a member begins, at its name, or an element.
type place struct {
	key    string // as plugins[0].ipam.subnet
	offset int
	text   string // of a string, a number or a bool
}

// newDocument finds the places of a document; of one that is not JSON, as far as it is.
func newDocument(raw []byte) *document {
	d := &document{raw: raw, index: map[string]int{}}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	d.value(dec, place{offset: d.next(0)})
	return d
}

// next is where the token behind an offset begins.
func (d *document) next(offset int) int {
	for offset < len(d.raw) && strings.IndexByte(" \t\r\n,:", d.raw[offset]) >= 0 {
		offset++
	}
	return offset
}

// value reads a value, whose place is that of its member or element. False ends it: there is
// no more.
func (d *document) value(dec *json.Decoder, at place) bool {
	token, err := dec.Token()
	if err != nil {
		return false
	}
	delim, nested := token.(json.Delim)
	if !nested {
		at.text = fmt.Sprint(token)
	}
	if _, ok := d.index[at.key]; ok {
		d.twice = append(d.twice, at)
	} else {
		d.index[at.key] = len(d.places)
		d.places = append(d.places, at)
	}
	if !nested {
		return true
	}
	for i := 0; dec.More(); i++ {
		inner := place{key: fmt.Sprintf("%s[%d]", at.key, i), offset: d.next(int(dec.InputOffset()))}
		if delim == '{' {
			name, err := dec.Token()
			if err != nil {
				return false
			}
			inner.key = join(at.key, fmt.Sprint(name))
		}
		if !d.value(dec, inner) {
			return false
		}
	}
	_, err = dec.Token()
	return err == nil
}

// position returns the nearest key that is there, and where it is: for one that is missing the
// object that lacks it. A key of the form @N is an offset.
func (d *document) position(key string) (found string, line, column int) {
	if offset := 0; strings.HasPrefix(key, "@") {
		for _, digit := range key[1:] {
			offset = 10*offset + int(digit-'0')
		}
		line, column = d.line(offset)
		return "", line, column
	}
	for ; key != ""; key = parent(key) {
		if i, ok := d.lookup(key); ok {
			line, column = d.line(d.places[i].offset)
			return d.places[i].key, line, column
		}
	}
	line, column = d.line(d.next(0))
	return "", line, column
}

// lookup finds a key, in any case of letters.
func (d *document) lookup(key string) (int, bool) {
	if i, ok := d.index[key]; ok {
		return i, true
	}
	for i, p := range d.places {
		if strings.EqualFold(p.key, key) {
			return i, true
		}
	}
	return 0, false
}

// parent cuts the last part of a key off.
func parent(key string) string { return key[:max(0, strings.LastIndexAny(key, ".["))] }

// depth is the number of the parts of a key.
func depth(key string) int {
	if key == "" {
		return 0
	}
	return 1 + strings.Count(key, ".") + strings.Count(key, "[")
}

// last is the last part of a key.
func last(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }

// line returns line and column of an offset, both from 1.
func (d *document) line(offset int) (line, column int) {
	before := d.raw[:min(offset, len(d.raw))]
	return 1 + bytes.Count(before, []byte("\n")), len(before) - bytes.LastIndexByte(before, '\n')
}

// mistake is where JSON ends being JSON, as a key for position, and why.
func (d *document) mistake(err *json.SyntaxError) (key, reason string) {
	at := max(0, int(err.Offset)-1)
	reason = "not JSON: " + err.Error()
	before := bytes.TrimRight(d.raw[:min(at, len(d.raw))], " \t\r\n")
	switch {
	case at < len(d.raw) && bytes.HasSuffix(before, []byte(",")) && (d.raw[at] == '}' || d.raw[at] == ']'):
		at, reason = len(before)-1, fmt.Sprintf("not JSON: a comma before %q: remove it", d.raw[at])
	case at < len(d.raw) && (d.raw[at] == '/' || d.raw[at] == '#'):
		reason = "not JSON: there are no comments in JSON"
	case len(before) == 0 && at == len(d.raw):
		reason = "the file is empty"
	case strings.Contains(reason, "after object key:value pair"), strings.Contains(reason, "after array element"):
		reason = "not JSON: a comma is missing before this"
	case int(err.Offset) >= len(d.raw):
		at, reason = len(d.raw), "not JSON: the end is missing"
	}
	return fmt.Sprintf("@%d", at), reason
}

// inside are the objects of a plugin's configuration that messages leave out of the key.
var inside = [...]string{"", "ipam", "runtimeConfig", "args.cni", "delegate"}

// named finds the key that a message is about, in a part of the document: one that it names,
// the last part of one with the value that it names, or the value alone. Else it is the one
// given.
func (d *document) named(text, scope, otherwise string) string {
	words := strings.FieldsFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.-[]/:", r)
	})
	for i, word := range words {
		words[i] = strings.TrimRight(word, ".:")
	}
	marked := func(word string) bool {
		return strings.Contains(text, `"`+word+`"`) || strings.Contains(text, "'"+word+"'") || strings.Contains(text, word+":") ||
			strings.ContainsAny(word, ".[")
	}
	deepest := "" // "ipam" may be in front of the key that is in it
	for _, word := range words {
		for key := word; key != "" && marked(word); key = parent(key) {
			for _, in := range inside {
				if i, ok := d.lookup(join(join(scope, in), key)); ok && depth(d.places[i].key) > depth(deepest) {
					deepest = d.places[i].key
				}
			}
		}
	}
	if deepest != "" {
		return cmp.Or(d.match(text, words, deepest), d.match(text, nil, deepest), deepest)
	}
	if key := d.match(text, words, scope); key != "" {
		return key
	}
	for _, word := range words {
		for _, p := range d.places {
			camel := strings.ContainsFunc(word[min(1, len(word)):], unicode.IsUpper)
			if within(p.key, scope) && p.ends(word) && (marked(word) || camel) {
				return p.key
			}
		}
	}
	return cmp.Or(d.match(text, nil, scope), otherwise)
}

// match finds the place in a part of the document whose value is in a text; with words, its name
// is one of them. Of several it is the one with the longest value; empty: there is none.
func (d *document) match(text string, words []string, scope string) (key string) {
	longest := 0
	for _, p := range d.places {
		if !within(p.key, scope) || len(p.text) <= longest || !hasValue(text, p.text) {
			continue
		}
		named := slices.ContainsFunc(words, p.ends)
		if named || len(words) == 0 && len(p.text) > 3 && last(p.key) != "type" {
			key, longest = p.key, len(p.text)
		}
	}
	return key
}

// hasValue reports whether a text has a value that is no part of a longer one.
func hasValue(text, value string) bool {
	i := strings.Index(text, value)
	if i < 0 || value == "" {
		return false
	}
	part := func(b byte) bool { return unicode.IsLetter(rune(b)) || unicode.IsDigit(rune(b)) }
	end := i + len(value)
	return (i == 0 || !part(text[i-1])) && (end == len(text) || !part(text[end]))
}

// ends reports whether a word is the last part of the place's key, or a key with dots.
func (p place) ends(word string) bool {
	tail := len(p.key) - len(word)
	return word != "" && tail >= 0 && strings.EqualFold(p.key[tail:], word) && (tail == 0 || p.key[tail-1] == '.')
}

// within reports whether a key is of what is at scope.
func within(key, scope string) bool {
	rest, ok := strings.CutPrefix(key, scope)
	return ok && (scope == "" || rest != "" && (rest[0] == '.' || rest[0] == '['))
}
