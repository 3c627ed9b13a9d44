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
func (op *Op) ID() (id record.LinkID, err error) {
	if id.ID, err = op.NS.ID(); err != nil {
		return record.LinkID{}, err
	}
	if op.Link != nil {
		id.Index, id.Parent = op.Link.Index, op.Link.Parent
	}
	if op.Cont == nil {
		if op.Cont, err = rtnl.In(op.Call.Session, op.NS); err != nil {
			return record.LinkID{}, err
		}
	}
	id.Cookie, err = op.Cont.NSCookie()
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
		op.Undo("record "+name, func(context.Context) error { return restore() })
	}
	return err
}

// Owns reports whether DEL may change the interface. rec is the attachment's record; nil: none.
// Attachments of the reference or of an earlier version have no record, or one without the
// interface: then the label, the record of another attachment, or prevResult shows the owner.
// Without any of these the owner is unknown, and DEL does not change the interface: a late DEL may
// have the path of another namespace.
func (op *Op) Owns(rec *record.Head) (bool, error) {
	if op.Link == nil {
		return false, nil
	}
	id, err := op.ID()
	if err != nil {
		return false, err
	}
	claimed := rec != nil && rec.LinkID == id
	if claimed && id.Cookie != 0 {
		return true, nil
	}
	host, err := op.hostVeth()
	if err != nil {
		return false, err
	}
	key := op.labelKey(host)
	switch {
	case key != "" && key != op.Key() || key == "" && !claimed && recordedByOther(op.Dir, id, op.Attachment):
		op.Warn("%s in %s is not of %s: left alone", op.Link.Name, op.Call.NetNS, op.Attachment)
		return false, nil
	case key != "" || claimed:
		return true, nil
	}
	return op.Prev != nil && op.isDescribed(host), nil
}

// LabelledOther reports whether the label names another attachment as the interface's owner.
func (op *Op) LabelledOther() (bool, error) {
	host, err := op.hostVeth()
	key := op.labelKey(host)
	return err == nil && key != "" && key != op.Key(), err
}

// labelKey returns the owner's key in the label; empty: no label. A container can change the label
// of its own interface, so the label of the host-side veth takes precedence.
func (op *Op) labelKey(host *rtnl.Link) string {
	if host != nil && spec.LabelKey(host.Alias) != "" {
		return spec.LabelKey(host.Alias)
	}
	return spec.LabelKey(op.Link.Alias)
}

// hostVeth returns the peer of the interface on the host; nil: none.
func (op *Op) hostVeth() (*rtnl.Link, error) {
	if op.Link.Kind != "veth" {
		return nil, nil
	}
	host, err := op.OnHost()
	if err != nil {
		return nil, err
	}
	peer, err := host.VethPeer(op.Link, op.NS)
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

// isDescribed reports whether prevResult describes the interface. Names in a container and paths are
// reused, so it compares the name of the host-side veth, or the address.
func (op *Op) isDescribed(host *rtnl.Link) bool {
	for _, ifc := range op.Prev.Interfaces {
		if host != nil && ifc.Sandbox == "" && ifc.Name == host.Name {
			return true
		}
		addr, err := spec.HardwareAddr(ifc.MAC)
		if ifc.Sandbox != "" && ifc.Name == op.Link.Name && err == nil && bytes.Equal(addr, op.Link.MAC) {
			return true
		}
	}
	return false
}
