package lint

import (
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// A document is a file in which positions are looked up.
type document struct {
	raw      []byte
	read     bool // repeated members have been noted
	problems int  // noted so far
}

// A place is the position of a member or an element.
type place struct {
	key         string // as plugins[0].ipam.subnet
	name, value int    // offsets; those of an element are both the value's
}

// placeOf returns the place of a value of the document.
func placeOf(n *spec.Node) place { return place{n.Key(), n.Start, n.Value} }

// twice finds the members whose name, in any case of letters, an object has twice. It reads a
// document that is not JSON up to the error.
func (d *document) twice() (twice []problem) {
	d.read = true
	type object struct {
		names       map[string]string // as they are written, by what they are in lower case
		free, asked bool
	}
	var around []object // the values around, by depth
	spec.Walk(d.raw, func(n *spec.Node) bool {
		if len(twice) == mostFindings {
			return false
		}
		around = append(around[:n.Depth], object{})
		written, member := n.Name()
		if !member {
			return true
		}
		object := &around[n.Depth-1]
		if object.names == nil {
			object.names = map[string]string{}
		}
		folded := strings.ToLower(written)
		other, again := object.names[folded]
		if again && other != written && !object.asked {
			object.free, object.asked = isFree(n.Up.Key()), true
		}
		if again && (other == written || !object.free) {
			twice = append(twice, problem{severity: Risk, at: new(placeOf(n)), name: true, text: fmt.Sprintf("%q is here twice: the last one counts", written)})
		}
		object.names[folded] = written
		return true
	})
	return twice
}

// nearest returns the place of a key, or of the nearest one that contains it.
func (d *document) nearest(key string) place {
	n, ok := spec.Nearest(d.raw, key)
	if !ok {
		return place{}
	}
	return placeOf(n)
}

// has returns the place in a part of the document that has a value, or else that of the part.
func (d *document) has(key, value string) (p place) {
	part, ok := spec.Find(d.raw, key)
	if !ok {
		return d.nearest(key)
	}
	p = placeOf(part)
	found := false
	spec.Walk(d.raw[part.Value:], func(n *spec.Node) bool {
		if found {
			return false
		}
		text, ok := n.Text(d.raw[part.Value:])
		if found = ok && text == value; found {
			p = place{spec.JoinKeys(p.key, n.Key()), part.Value + n.Start, part.Value + n.Value}
		}
		return !found
	})
	return p
}
