package hostdevice

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A deviceRecord is the record of a moved device, with its namespace and its index there.
type deviceRecord struct{ *record.Record[device] }

// A device is the state of a device on the host before ADD moved it. The alias of a moved link is
// its name on the host, as with the reference, which stores nothing else.
type device struct {
	Name    string `json:"name"`
	Alias   string `json:"alias"`
	MAC     string `json:"mac"`
	PermMAC string `json:"permMAC"` // permanent address of hardware; empty: none
	MTU     int    `json:"mtu"`     // bytes; 0: unknown
	Up      bool   `json:"up"`
	Kind    string `json:"kind"` // empty: hardware, which the kernel moves to the host when the namespace ends
}

// recordOf describes a link as it is.
func recordOf(op *attach.Op, l *rtnl.Link) deviceRecord {
	return deviceRecord{&record.Record[device]{
		Head: record.Head{Attachment: op.Attachment, NetNS: op.Call.NetNS, LinkID: record.LinkID{Index: l.Index}},
		Data: device{Name: l.Name, Alias: l.Alias, MAC: l.MAC.String(), PermMAC: l.PermMAC.String(), MTU: l.MTU, Up: l.Up, Kind: l.Kind},
	}}
}

func (rec deviceRecord) sameAddress(l *rtnl.Link) bool {
	return l.Kind == rec.Data.Kind && (l.MAC.String() == rec.Data.MAC || rec.Data.PermMAC != "" && l.PermMAC.String() == rec.Data.PermMAC)
}

// returnedByKernel reports whether a link of the host is the device, not restored yet.
func (rec deviceRecord) returnedByKernel(l *rtnl.Link) bool {
	return l.Alias == rec.Data.Name && rec.sameAddress(l)
}

// inContainer reports whether a link of the container is the device: of alias, address and index
// two must match. The container may have changed the alias or the address, and the index is unknown
// if ADD was killed.
func (rec deviceRecord) inContainer(l *rtnl.Link) bool {
	if l.Index == rec.Index {
		return l.Alias == rec.Data.Name || rec.sameAddress(l)
	}
	return rec.returnedByKernel(l)
}

// find returns the matching link, of several the one with the recorded index; nil: none.
func (rec deviceRecord) find(links []rtnl.Link, matches func(*rtnl.Link) bool) (found *rtnl.Link) {
	for i := range links {
		if l := &links[i]; matches(l) && (found == nil || l.Index == rec.Index) {
			found = l
		}
	}
	return found
}

// readDevice returns the record in a file; the error is os.ErrNotExist if there is none.
func readDevice(dir record.Dir, file string) (deviceRecord, error) {
	rec, err := record.Read[device](dir, file)
	if err == nil {
		err = spec.CheckIfName(rec.Data.Name)
	}
	return deviceRecord{rec}, err
}

// eachDevice calls fn with each readable record. An error does not stop it.
func eachDevice(dir record.Dir, fn func(deviceRecord) error) error {
	return record.Each(dir, func(_ string, rec *record.Record[device]) error {
		if spec.CheckIfName(rec.Data.Name) != nil {
			return nil
		}
		return fn(deviceRecord{rec})
	})
}

// recordDevice writes the record, and registers the undo of the move.
func recordDevice(op *attach.Op, dir record.Dir, dev *rtnl.Link) (rec deviceRecord, err error) {
	rec = recordOf(op, dev)
	if rec.ID, err = op.NS.ID(); err != nil {
		return rec, err
	}
	if rec.Cookie, err = op.Cont.NSCookie(); err != nil {
		return rec, err
	}
	op.Undo("device "+rec.Data.Name, func(ctx context.Context) error { return rec.returnDevice(ctx, op, dir) })
	return rec, rec.Write(dir)
}

// findReturned finds the device on the host. The records of all attachments are read only if the
// device has an alias, and so may have been moved before, or is missing.
func (p *plugin) findReturned(op *attach.Op, dir record.Dir) (*rtnl.Link, error) {
	dev, err := p.find(op.Host)
	if errors.Is(err, os.ErrNotExist) || err == nil && spec.CheckIfName(dev.Alias) == nil {
		restoreAll(op, dir)
		return p.find(op.Host)
	}
	return dev, err
}

// restoreAll restores the devices that the kernel moved to the host when their namespaces ended,
// and that no DEL has restored since. It deletes their records: otherwise a late DEL would take a
// device from its next attachment.
func restoreAll(op *attach.Op, dir record.Dir) {
	var links []rtnl.Link
	err := eachDevice(dir, func(rec deviceRecord) (err error) {
		if links == nil {
			if links, err = op.Host.Links(); err != nil {
				return err
			}
		}
		dev := rec.find(links, rec.returnedByKernel)
		if dev == nil {
			return nil
		}
		if err := rec.restore(op, dev); err != nil {
			return ignorePending(err)
		}
		return dir.Remove(record.Name(rec.Attachment))
	})
	if err != nil {
		op.Warn("%v", err)
	}
}

// remove is DEL. A device without a record may have been moved by the reference: then its alias is
// its name on the host, and nothing else is known.
func remove(ctx context.Context, op *attach.Op, c *plugin) error {
	dir := record.ConfiguredDir(op.Request, dataDir)
	rec, err := readDevice(dir, record.Name(op.Attachment))
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			op.Warn("%v", err)
		}
		l := movedByReference(op, c)
		if l == nil || hasRecord(op, dir, l) {
			return dir.Remove(record.Name(op.Attachment))
		}
		rec = recordOf(op, l)
		rec.Data.Name, rec.Data.Alias, rec.Data.Up = l.Alias, "", false
	}
	return rec.returnDevice(ctx, op, dir)
}

// hasRecord reports whether a link is the device of another attachment.
func hasRecord(op *attach.Op, dir record.Dir, l *rtnl.Link) (found bool) {
	_ = eachDevice(dir, func(rec deviceRecord) error {
		found = found || rec.returnedByKernel(l) || rec.NetNS == op.Call.NetNS && rec.inContainer(l)
		return nil
	})
	return found
}

// movedByReference finds a link whose alias is a name of the host. In the container it is
// CNI_IFNAME, if the configuration can select that. On the host it is a link that is down, under a
// name that the kernel gives when a namespace ends: its name there, or devN.
func movedByReference(op *attach.Op, c *plugin) *rtnl.Link {
	if op.Cont != nil {
		l, err := op.Cont.Link(op.IfName)
		if err == nil && spec.CheckIfName(l.Alias) == nil && c.matches(op.Cont, l) {
			return l
		}
		return nil
	}
	if c.Device == "" {
		return nil
	}
	links, _ := op.Host.Links()
	for i := range links {
		l := &links[i]
		if l.Alias == c.Device && l.Alias != l.Name && !l.Up && (l.Name == op.IfName || isDevN(l.Name)) {
			return l
		}
	}
	return nil
}

// isDevN reports whether a name is "dev" and a number.
func isDevN(name string) bool {
	n, ok := strings.CutPrefix(name, "dev")
	return ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// errPending reports a device that cannot be restored yet, after a warning; its record stays for
// the next DEL or GC.
var errPending = errors.New("to be restored later")

func ignorePending(err error) error {
	if errors.Is(err, errPending) {
		return nil
	}
	return err
}

// returnDevice moves the device to the host, restores its state before ADD, and deletes its record.
// A device that is not found was deleted with the namespace, or unplugged: no error.
func (rec deviceRecord) returnDevice(ctx context.Context, op *attach.Op, dir record.Dir) error {
	cont, done, err := rec.container(op)
	if err != nil {
		return err
	}
	defer done()
	unlock, err := dir.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	dev, err := rec.moveOut(op.Host, cont)
	if dev == nil && err == nil {
		// GC comes long after the end of the namespace.
		wait := cont == nil && rec.Data.Kind == "" && op.Call.Verb == spec.Del
		dev, err = rec.findOnHost(ctx, op, wait)
	}
	if dev != nil && err == nil {
		err = rec.restore(op, dev)
	}
	if err != nil {
		return ignorePending(err)
	}
	return dir.Remove(record.Name(rec.Attachment))
}

// container returns a socket in the namespace to which the device was moved, or in CNI_NETNS if
// that is gone; nil: neither exists. The caller calls done.
func (rec deviceRecord) container(op *attach.Op) (cont *rtnl.Conn, done func(), err error) {
	cont, done = op.Cont, func() {}
	if cont != nil && rec.NetNS == op.Call.NetNS {
		return cont, done, nil
	}
	if ns, err := netns.Open(rec.NetNS); err == nil { // CNI_NETNS may be empty
		defer ns.Close()
		if cont, err = rtnl.Dial(ns); err != nil {
			return nil, nil, err
		}
		done = func() { cont.Close() }
	}
	return cont, done, nil
}

// refuseInUse is for ADD: the device of an earlier ADD may be returned only if its namespace is
// gone. The code is 100.
func (rec deviceRecord) refuseInUse(op *attach.Op) error {
	cont, done, err := rec.container(op)
	if err != nil {
		return err
	}
	defer done()
	links, err := cont.Links()
	if err != nil {
		return err
	}
	if dev := rec.find(links, rec.inContainer); dev != nil {
		return spec.Errorf(spec.CodeBusy, "%s has the device %s already, as %s in %s: run its DEL first", op.Attachment, rec.Data.Name, dev.Name, rec.NetNS)
	}
	return nil
}

// moveOut moves the device out of the container. The device gets its name before the move, so that
// udev on the host never sees another one. If the name is used on the host, it becomes devN. Nil:
// the device is not there, or cont is nil.
func (rec deviceRecord) moveOut(host, cont *rtnl.Conn) (*rtnl.Link, error) {
	if cont == nil {
		return nil, nil
	}
	links, err := cont.Links()
	dev := rec.find(links, rec.inContainer)
	if dev == nil || err != nil {
		return nil, err
	}
	hostNS, err := host.NS()
	if err != nil {
		return nil, err
	}
	defer hostNS.Close()
	if err := cont.SetLink(dev.Index, rtnl.LinkChange{Up: new(false), Alias: &rec.Data.Name}); err != nil {
		return nil, err
	}
	if err := cont.SetLink(dev.Index, rtnl.LinkChange{Name: &rec.Data.Name}); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	name := rec.Data.Name
	for n := dev.Index; ; n++ {
		err := cont.SetLink(dev.Index, rtnl.LinkChange{NS: hostNS, Name: &name})
		if err == nil {
			return host.Link(name)
		}
		if !errors.Is(err, os.ErrExist) || n == dev.Index+10 { // an alternative name may be in use too
			return nil, err
		}
		name = fmt.Sprintf("dev%d", n)
	}
}

// ReturnTimeout bounds the wait for hardware after the end of its namespace.
const ReturnTimeout = time.Second

// findOnHost returns the device if the kernel moved it to the host when the namespace ended. The
// kernel needs some time for that: with wait, findOnHost waits up to ReturnTimeout. Nil: the device
// is not on the host, or an earlier DEL restored it.
func (rec deviceRecord) findOnHost(ctx context.Context, op *attach.Op, wait bool) (*rtnl.Link, error) {
	if !wait {
		links, err := op.Host.Links()
		return rec.find(links, rec.returnedByKernel), err
	}
	ctx, cancel := context.WithTimeout(ctx, ReturnTimeout)
	defer cancel()
	dev, err := op.Host.WaitLink(ctx, func(l *rtnl.Link) bool {
		return rec.returnedByKernel(l) || l.Name == rec.Data.Name && rec.sameAddress(l)
	})
	if errors.Is(err, context.DeadlineExceeded) {
		op.Warn("device %s is not on the host yet: the next DEL or GC restores it", rec.Data.Name)
		return nil, errPending
	}
	if dev != nil && !rec.returnedByKernel(dev) {
		return nil, nil
	}
	return dev, err
}

// restore restores the device's state before ADD on the host. It sets the alias last, so that the
// next call can continue an interrupted restore.
func (rec deviceRecord) restore(op *attach.Op, dev *rtnl.Link) error {
	var ch rtnl.LinkChange
	if rec.Data.MTU != 0 && rec.Data.MTU != dev.MTU {
		ch.MTU = &rec.Data.MTU
	}
	if addr, err := spec.ParseMAC(rec.Data.MAC); err == nil && !bytes.Equal(addr, dev.MAC) {
		ch.MAC = addr
	}
	if dev.Name != rec.Data.Name {
		ch.Up = new(false) // down, for the new name
		if err := op.Host.SetLink(dev.Index, ch); err != nil {
			return err
		}
		err := op.Host.SetLink(dev.Index, rtnl.LinkChange{Name: &rec.Data.Name})
		if errors.Is(err, os.ErrExist) {
			op.Warn("name %s is in use on the host: the device is left as %s, the next DEL or GC renames it", rec.Data.Name, dev.Name)
			return errPending
		}
		if err != nil {
			return err
		}
		ch = rtnl.LinkChange{}
	}
	ch.Alias = &rec.Data.Alias
	if rec.Data.Up {
		ch.Up = &rec.Data.Up
	}
	return op.Host.SetLink(dev.Index, ch)
}

func collect(ctx context.Context, op *attach.Op) error {
	valid, dir := op.ValidKeys(), record.ConfiguredDir(op.Request, dataDir)
	return eachDevice(dir, func(rec deviceRecord) error {
		if rec.Network != op.Network || valid(rec.Attachment.Key()) {
			return nil
		}
		return rec.returnDevice(ctx, op, dir)
	})
}
