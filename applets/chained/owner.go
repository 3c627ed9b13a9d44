package chained

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cnibox/applets/record"
	"cnibox/internal/disk"
	"cnibox/internal/netns"
	"cnibox/internal/undo"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A Record has the owner and the identity of an interface that a plugin changes. It is written
// before the first change.
//
// Runtimes DEL what they could not ADD, while an interface of another network has the name, and
// they DEL late, when another container has the path of the namespace. By the record such a DEL
// does not change what another attachment owns.
type Record struct {
	record.Owner
	LinkID
}

// A LinkID identifies an interface among all that exist and have existed. A new namespace may have
// the path and the inode of one that has ended, and its links the same indexes; the cookie differs,
// and before Linux 5.14, for a veth pair, the index of the host-side veth. The zero value is
// unknown.
type LinkID struct {
	netns.ID
	Cookie uint64 `json:"cookie,omitempty"` // of the namespace; 0: before Linux 5.14
	Index  uint32 `json:"index,omitempty"`
	Parent uint32 `json:"parent,omitempty"`
}

// SameNS reports whether both are of one namespace.
func (id LinkID) SameNS(o LinkID) bool { return id.ID == o.ID && id.Cookie == o.Cookie }

// ID describes the interface; without one, the namespace alone.
func (c *Interface) ID() (id LinkID, err error) {
	if id.ID, err = c.NS.ID(); err != nil {
		return LinkID{}, err
	}
	if c.Link != nil {
		id.Index, id.Parent = c.Link.Index, c.Link.Parent
	}
	if c.Conn == nil {
		if c.Conn, err = rtnl.Dial(c.NS); err != nil {
			return LinkID{}, err
		}
	}
	id.Cookie, err = c.Conn.NSCookie()
	return id, err
}

// ReadRecord returns the record of an attachment; nil: it has none that can be read.
func ReadRecord[T interface{ Of(spec.Attachment) bool }](dir record.Dir, a spec.Attachment) *T {
	rec := new(T)
	if dir.Read(record.Name(a), rec) != nil || !(*rec).Of(a) {
		return nil
	}
	return rec
}

// WriteRecord writes that of an attachment, and registers its undo.
func (c *Interface) WriteRecord(dir record.Dir, a spec.Attachment, undo *undo.Stack) error {
	id, err := c.ID()
	if err != nil {
		return err
	}
	return ReplaceRecord(dir, undo, record.Name(a), Record{Owner: record.OwnerOf(a), LinkID: id})
}

// ReplaceRecord writes a record, and registers how to bring back what was there before.
func ReplaceRecord(d record.Dir, undo *undo.Stack, name string, v any) error {
	old, readErr := disk.Read(filepath.Join(string(d), name), unix.O_NOFOLLOW, record.MaxSize)
	if err := d.Write(name, v); err != nil {
		return err
	}
	undo.Add("record "+name, func(context.Context) error {
		if readErr != nil {
			return d.Remove(name)
		}
		return d.Replace(name, old)
	})
	return nil
}

// Owns reports whether DEL may change the interface; rec is the record of the attachment, nil: it
// has none. Attachments of the reference or of an earlier version have no record, or one without the
// interface: then the owner follows from the label, the record of another attachment, or prevResult.
// Without any of these it is not known, and the interface stays as it is: a late DEL may have the path
// of another namespace.
func (c *Interface) Owns(r *spec.Request, dir record.Dir, rec *Record) (bool, error) {
	if c.Link == nil {
		return false, nil
	}
	id, err := c.ID()
	if err != nil {
		return false, err
	}
	claimed := rec != nil && rec.LinkID == id
	if claimed && id.Cookie != 0 {
		return true, nil
	}
	host, err := c.hostVeth()
	if err != nil {
		return false, err
	}
	key := c.labelKey(host)
	switch {
	case key != "" && key != r.Key() || key == "" && !claimed && recordedByOther(dir, id, r.Attachment):
		r.Warn("%s in %s is not of %s: left alone", c.Link.Name, r.Call.NetNS, r.Attachment)
		return false, nil
	case key != "" || claimed:
		return true, nil
	}
	return r.Prev != nil && c.describedBy(r.Prev, host), nil
}

// LabelledOther reports whether the label names another attachment as the interface's owner.
func (c *Interface) LabelledOther(a spec.Attachment) (bool, error) {
	host, err := c.hostVeth()
	key := c.labelKey(host)
	return err == nil && key != "" && key != a.Key(), err
}

// labelKey is the owner's key in the label; empty: there is no label. A container can change that of its
// own interface, so that of the host-side veth counts first.
func (c *Interface) labelKey(host *rtnl.Link) string {
	if host != nil && spec.LabelKey(host.Alias) != "" {
		return spec.LabelKey(host.Alias)
	}
	return spec.LabelKey(c.Link.Alias)
}

// hostVeth is the peer of the interface on the host; nil: it has none.
func (c *Interface) hostVeth() (*rtnl.Link, error) {
	if c.Link.Kind != "veth" {
		return nil, nil
	}
	host, err := rtnl.Dial(netns.Host())
	if err != nil {
		return nil, err
	}
	defer host.Close()
	peer, err := host.VethPeer(c.Link, c.NS)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return peer, err
}

// recordedByOther reports whether an interface is in the record of another attachment.
func recordedByOther(d record.Dir, id LinkID, a spec.Attachment) (found bool) {
	// a record that cannot be read does not count
	_ = d.Each(func(name string) error {
		var rec Record
		if d.Read(name, &rec) == nil && rec.LinkID == id && !rec.Of(a) {
			found = true
		}
		return nil
	})
	return found
}

// describedBy reports whether a result is about the interface. Names in a container and
// paths are reused: it is identified by the name of the host-side veth, or by its address.
func (c *Interface) describedBy(res *spec.Result, host *rtnl.Link) bool {
	for _, in := range res.Interfaces {
		if host != nil && in.Sandbox == "" && in.Name == host.Name {
			return true
		}
		addr, err := spec.HardwareAddr(in.MAC)
		if in.Sandbox != "" && in.Name == c.Link.Name && err == nil && bytes.Equal(addr, c.Link.MAC) {
			return true
		}
	}
	return false
}
