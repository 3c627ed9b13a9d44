package rtnl

import (
	"errors"
	"math/rand/v2"
	"os"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// DelLinks deletes all matching links of the namespace together: the kernel waits only once until
// they are unused, which takes some 20 ms for one link. A link that is deleted meanwhile is not an
// error. If one link cannot be deleted, each link is deleted by itself, and the others go. failed,
// if it is not nil, receives these errors instead of the caller.
func (c *Conn) DelLinks(match func(*Link) bool, failed func(index uint32, err error)) error {
	links, err := c.Links()
	if err != nil {
		return err
	}
	return c.DelLinksOf(links, match, failed)
}

// DelLinksOf is [Conn.DelLinks] for the links of the namespace that the caller has read.
func (c *Conn) DelLinksOf(links []Link, match func(*Link) bool, failed func(index uint32, err error)) error {
	used := map[uint32]bool{0: true} // 0 is the group of a new link
	var gone []uint32
	for i := range links {
		used[links[i].Group] = true
		if match(&links[i]) {
			gone = append(gone, links[i].Index)
		}
	}
	if len(gone) < 2 {
		return c.dropEach(gone, failed)
	}
	group := 1<<30 + rand.Uint32N(1<<30) // people take small numbers
	for used[group] {
		group++
	}
	var ops []Op
	for _, index := range gone {
		ops = append(ops, ChangeLink(index, LinkChange{Group: &group}))
	}
	err := SkipAbsent(c.Do(ops...))
	if err == nil {
		err = SkipAbsent(c.Do(dropGroup(group)))
	}
	// A link that cannot be deleted makes the deletion of its group fail (EOPNOTSUPP).
	if err != nil {
		return c.dropEach(gone, failed)
	}
	return nil
}

// dropEach deletes links one after another; a missing link is not an error.
func (c *Conn) dropEach(indexes []uint32, failed func(uint32, error)) error {
	var errs []error
	for _, index := range indexes {
		err := SkipAbsent(c.Do(DropLink(index)))
		if err != nil && failed != nil {
			failed(index, err)
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// dropGroup deletes the links of a group, os.ErrNotExist if there are none: it sends RTM_DELLINK
// without an index or a name, which rtnetlink(7) does not mention.
func dropGroup(group uint32) Op {
	data, err := marshal(&rtnetlink.LinkMessage{}, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_GROUP, group) })
	return newOp("link delete group", unix.RTM_DELLINK, ack, data, err)
}

// SkipAbsent returns nil for os.ErrNotExist. Errors of several changes are joined; then each of
// them must be os.ErrNotExist.
func SkipAbsent(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var left []error
		for _, e := range joined.Unwrap() {
			left = append(left, SkipAbsent(e))
		}
		return errors.Join(left...)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
