package applets

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
	"cnibox/internal/undo"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A claim is the record of a plugin that works on a result: whose interface it has
// changed, and which one that is. It is written before the first change.
//
// Runtimes DEL what they could not ADD, while another network has an interface of the
// name; and they DEL late, when another container has the path of the namespace. Without
// a claim such a DEL would take away what is another attachment's.
type claim struct {
	recordOwner
	linkID
}

// A linkID distinguishes an interface from all others that there are, and from those that there
// were. A namespace that has ended leaves path and inode to the next one at once, and
// its first links have the same indexes; what differs is the cookie, and before
// Linux 5.14, for a veth pair, the index of the host's end. The zero value is not known.
type linkID struct {
	rtnl.ID
	Cookie uint64 `json:"cookie,omitempty"` // of the namespace; 0: before Linux 5.14
	Index  uint32 `json:"index,omitempty"`
	Parent uint32 `json:"parent,omitempty"`
}

// sameNS reports whether both are of one namespace.
func (id linkID) sameNS(o linkID) bool { return id.ID == o.ID && id.Cookie == o.Cookie }

// id describes the interface; without one, the namespace alone.
func (c *chained) id() (id linkID, err error) {
	if id.ID, err = c.ns.ID(); err != nil {
		return linkID{}, err
	}
	if c.link != nil {
		id.Index, id.Parent = c.link.Index, c.link.Parent
	}
	id.Cookie, err = c.cont.NSCookie()
	return id, err
}

// readOwn returns the record of an attachment; nil: there is none that can be read.
func readOwn[T interface{ Of(spec.Attachment) bool }](dir records, a spec.Attachment) *T {
	rec := new(T)
	if dir.read(recordName(a), rec) != nil || !(*rec).Of(a) {
		return nil
	}
	return rec
}

// claim writes that of an attachment, and registers the way back.
func (c *chained) claim(dir records, a spec.Attachment, undo *undo.Stack) error {
	id, err := c.id()
	if err != nil {
		return err
	}
	return replaceFor(dir, undo, a, claim{ownerOf(a), id})
}

// replaceFor writes the record of an attachment, and registers how to bring back what was
// there before.
func replaceFor(d records, undo *undo.Stack, a spec.Attachment, v any) error {
	name := recordName(a)
	old, readErr := disk.Read(filepath.Join(string(d), name), unix.O_NOFOLLOW, longestRecord)
	if err := d.write(name, v); err != nil {
		return err
	}
	undo.Add("record of "+a.String(), func(context.Context) error {
		if readErr != nil {
			return d.remove(name)
		}
		return d.replace(name, old)
	})
	return nil
}

// owns reports whether DEL may change the interface; rec is the claim of the attachment,
// nil: there is none. Attachments that the reference or an earlier version has made have
// no claim, or one without the interface: then its label names the owner, or the claim of
// another attachment, or prevResult.
func (c *chained) owns(r *spec.Request, dir records, rec *claim) (bool, error) {
	if c.link == nil {
		return false, nil
	}
	id, err := c.id()
	if err != nil {
		return false, err
	}
	claimed := rec != nil && rec.linkID == id
	if claimed && id.Cookie != 0 {
		return true, nil
	}
	host, err := c.hostEnd()
	if err != nil {
		return false, err
	}
	key := spec.LabelKey(c.link.Alias)
	if host != nil && spec.LabelKey(host.Alias) != "" {
		key = spec.LabelKey(host.Alias) // a container can change its own
	}
	switch {
	case key != "" && key != r.Key() || key == "" && !claimed && claimedByOther(dir, id, r.Attachment):
		r.Warn("%s in %s is not of %s: left alone", c.link.Name, r.Call.NetNS, r.Attachment)
		return false, nil
	case key != "" || claimed || rec != nil && rec.linkID == linkID{}:
		return true, nil
	case r.Prev == nil:
		// A refused ADD has none either; in the versions before, no DEL has one.
		return rec == nil && !r.Net.Version.AtLeast(spec.V040), nil
	}
	return c.describedBy(r.Prev, host), nil
}

// hostEnd is the other end of the interface; nil: there is none on the host.
func (c *chained) hostEnd() (*rtnl.Link, error) {
	if c.link.Kind != "veth" {
		return nil, nil
	}
	host, err := rtnl.Dial(rtnl.Host())
	if err != nil {
		return nil, err
	}
	defer host.Close()
	peer, err := host.VethPeer(c.link, c.ns)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return peer, err
}

// claimedByOther reports whether an interface is claimed by another attachment.
func claimedByOther(d records, id linkID, a spec.Attachment) (found bool) {
	// What cannot be read claims nothing.
	_ = d.each(func(name string) error {
		var rec claim
		if d.read(name, &rec) == nil && rec.linkID == id && !rec.Of(a) {
			found = true
		}
		return nil
	})
	return found
}

// describedBy reports whether a result is about the interface. Names in a container and
// paths are reused: it is identified by the name of the host-side veth, or by its address.
func (c *chained) describedBy(res *spec.Result, host *rtnl.Link) bool {
	for _, in := range res.Interfaces {
		if host != nil && in.Sandbox == "" && in.Name == host.Name {
			return true
		}
		addr, err := spec.HardwareAddr(in.MAC)
		if in.Sandbox != "" && in.Name == c.link.Name && err == nil && bytes.Equal(addr, c.link.MAC) {
			return true
		}
	}
	return false
}
