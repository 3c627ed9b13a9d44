// Package record stores one small JSON file for each attachment: what a plugin needs at DEL, CHECK
// and GC and cannot read from the kernel.
package record

import (
	"encoding/json"
	"errors"
	"os"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

// A Record is the file of an attachment. Data is the plugin's own; its members are stored beside
// those of Head, so it must not have members of the same names. Neither may have its own encoder.
type Record[T any] struct {
	Head
	Data T
}

// A Head names the owner, namespace and interface of a record. A plugin omits what it does not use.
// Records of the reference have no head.
type Head struct {
	spec.Attachment        // the file name has it as a hash
	NetNS           string `json:"netns,omitempty"` // path of the namespace
	LinkID
}

// A LinkID identifies an interface among all past and present ones. A new namespace may have the
// path and the inode of one that has ended, and its links the same indexes. The cookie differs, and
// before Linux 5.14, for a veth pair, the index of the host-side veth. The zero value is unknown.
type LinkID struct {
	netns.ID
	Cookie uint64 `json:"cookie,omitempty"` // of the namespace; 0: before Linux 5.14
	Index  uint32 `json:"index,omitempty"`
	Parent uint32 `json:"parent,omitempty"`
}

// SameNS reports whether both are in one namespace.
func (id LinkID) SameNS(o LinkID) bool { return id.ID == o.ID && id.Cookie == o.Cookie }

// Gone reports whether the namespace is known to be gone: its path is missing, or leads to another
// namespace. An unreadable path does not count as gone.
func (h *Head) Gone() bool {
	ns, err := netns.Open(h.NetNS)
	if err != nil {
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, netns.ErrNotNS)
	}
	defer ns.Close()
	id, err := ns.ID()
	return err == nil && (id != h.ID || !ns.HasCookie(h.Cookie))
}

// Name returns the name of an attachment's record. It is made of the key, since the names of the
// attachment may be too long and, joined, ambiguous.
func Name(a spec.Attachment) string { return a.Key() + ".json" }

// Read returns the record in a file; see [Dir.Read].
func Read[T any](d Dir, name string) (*Record[T], error) {
	rec := new(Record[T])
	if err := d.Read(name, rec); err != nil {
		return nil, err
	}
	return rec, nil
}

// Each calls fn with each readable record, in any order. An error does not stop it. The directory
// may be missing.
func Each[T any](d Dir, fn func(name string, rec *Record[T]) error) error {
	return d.Each(func(name string) error {
		rec, err := Read[T](d, name)
		if err != nil {
			return nil
		}
		return fn(name, rec)
	})
}

// Find returns the record of an attachment; nil: there is no readable one.
func Find[T any](d Dir, a spec.Attachment) *Record[T] {
	if rec, err := Read[T](d, Name(a)); err == nil && rec.Attachment == a {
		return rec
	}
	return nil
}

// Write stores the record of its attachment; see [Dir.Write].
func (r *Record[T]) Write(d Dir) error { return d.Write(Name(r.Attachment), r) }

// Head returns the head of an attachment's record; nil: there is no readable one.
func (d Dir) Head(a spec.Attachment) *Head {
	if rec := Find[struct{}](d, a); rec != nil {
		return &rec.Head
	}
	return nil
}

// MarshalJSON encodes head and data as one object.
func (r *Record[T]) MarshalJSON() ([]byte, error) {
	head, err := json.Marshal(r.Head)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(r.Data)
	if err != nil || len(data) == len("{}") {
		return head, err
	}
	return append(append(head[:len(head)-1], ','), data[1:]...), nil
}

// UnmarshalJSON decodes head and data from one object.
func (r *Record[T]) UnmarshalJSON(b []byte) error {
	err := json.Unmarshal(b, &r.Head)
	if _, noData := any(r.Data).(struct{}); noData {
		return err
	}
	return errors.Join(err, json.Unmarshal(b, &r.Data))
}
