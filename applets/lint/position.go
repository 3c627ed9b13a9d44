package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A document is a file with the places of its members and elements.
type document struct {
	raw    []byte
	ends   []int          // offsets of the ends of lines
	places []place        // in the order of the file
	twice  []problem      // members whose name their object has had before
	index  map[string]int // of the last place that has a key
}

// A place is where a member or an element is.
type place struct {
	key         string // as plugins[0].ipam.subnet
	name, value int    // offsets; of an element both are the value's
	text        string // of a string
}

// find finds the places of a document; of one that is not JSON, as far as it is.
func (d *document) find() {
	d.index = map[string]int{}
	for i, b := range d.raw {
		if b == '\n' {
			d.ends = append(d.ends, i)
		}
	}
	dec := json.NewDecoder(bytes.NewReader(d.raw))
	dec.UseNumber()
	d.read(dec, place{})
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
	at.text, _ = token.(string)
	d.index[at.key] = len(d.places)
	d.places = append(d.places, at)
	if !nested {
		return true
	}
	names := map[string]string{} // as they are written, by what they are in lower case
	for i := 0; dec.More(); i++ {
		inner := place{name: d.next(dec)}
		if delim == '[' {
			inner.key = at.key + "[" + strconv.Itoa(i) + "]"
		} else {
			name, err := dec.Token()
			if err != nil {
				return false
			}
			written := name.(string)
			inner.key = join(at.key, written)
			folded := strings.ToLower(written)
			if other, ok := names[folded]; ok && (other == written || !isFree(at.key)) {
				d.twice = append(d.twice, problem{key: inner.key, name: true, text: fmt.Sprintf("%q is here twice: the last one counts", written)})
			}
			names[folded] = written
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

// line returns line and column of an offset, both from 1.
func (d *document) line(offset int) (line, column int) {
	line, _ = slices.BinarySearch(d.ends, offset)
	if line == 0 {
		return 1, offset + 1
	}
	return line + 1, offset - d.ends[line-1]
}

// join joins two keys, of which each may be empty.
func join(key, more string) string {
	if key == "" || more == "" || more[0] == '[' {
		return key + more
	}
	return key + "." + more
}
