package chained

import (
	"bytes"
	"context"
	"errors"
	"os"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// ID describes the interface; without one, the namespace alone.
func (c *Interface) ID() (id record.LinkID, err error) {
	if id.ID, err = c.NS.ID(); err != nil {
		return record.LinkID{}, err
	}
	if c.Link != nil {
		id.Index, id.Parent = c.Link.Index, c.Link.Parent
	}
	if c.Conn == nil {
		if c.Conn, err = rtnl.In(c.session, c.NS); err != nil {
			return record.LinkID{}, err
		}
	}
	id.Cookie, err = c.Conn.NSCookie()
	return id, err
}

// WriteRecord writes the record of an attachment before the first change, and registers its undo.
// The record always names the interface.
//
// Runtimes run DEL after a failed ADD, while an interface of another network has the name. They
// also run DEL late, when another container has the path of the namespace. The record keeps such a
// DEL from changing what another attachment owns.
func WriteRecord[T any](op *Op, name string, data T) error {
	id, err := op.ID()
	if err != nil {
		return err
	}
	rec := record.Record[T]{Head: record.Head{Attachment: op.Attachment, LinkID: id}, Data: data}
	restore, err := op.Dir.Exchange(name, &rec)
	if err == nil {
		op.Add("record "+name, func(context.Context) error { return restore() })
	}
	return err
}

// Owns reports whether DEL may change the interface. rec is the attachment's record; nil: none.
// Attachments of the reference or of an earlier version have no record, or one without the
// interface: then the label, the record of another attachment, or prevResult shows the owner.
// Without any of these the owner is unknown, and DEL does not change the interface: a late DEL may
// have the path of another namespace.
func (c *Interface) Owns(r *spec.Request, dir record.Dir, rec *record.Head) (bool, error) {
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

// labelKey returns the owner's key in the label; empty: no label. A container can change the label
// of its own interface, so the label of the host-side veth takes precedence.
func (c *Interface) labelKey(host *rtnl.Link) string {
	if host != nil && spec.LabelKey(host.Alias) != "" {
		return spec.LabelKey(host.Alias)
	}
	return spec.LabelKey(c.Link.Alias)
}

// hostVeth returns the peer of the interface on the host; nil: none.
func (c *Interface) hostVeth() (*rtnl.Link, error) {
	if c.Link.Kind != "veth" {
		return nil, nil
	}
	host, err := rtnl.OnHost(c.session)
	if err != nil {
		return nil, err
	}
	peer, err := host.VethPeer(c.Link, c.NS)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return peer, err
}

// recordedByOther reports whether an interface is in the record of another attachment.
func recordedByOther(d record.Dir, id record.LinkID, a spec.Attachment) (found bool) {
	// a record that cannot be read does not count
	_ = record.Each(d, func(_ string, rec *record.Record[struct{}]) error {
		found = found || rec.LinkID == id && rec.Attachment != a
		return nil
	})
	return found
}

// describedBy reports whether a result describes the interface. Names in a container and paths are
// reused, so it compares the name of the host-side veth, or the address.
func (c *Interface) describedBy(res *spec.Result, host *rtnl.Link) bool {
	for _, ifc := range res.Interfaces {
		if host != nil && ifc.Sandbox == "" && ifc.Name == host.Name {
			return true
		}
		addr, err := spec.HardwareAddr(ifc.MAC)
		if ifc.Sandbox != "" && ifc.Name == c.Link.Name && err == nil && bytes.Equal(addr, c.Link.MAC) {
			return true
		}
	}
	return false
}
