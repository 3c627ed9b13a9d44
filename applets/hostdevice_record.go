//go:build !no_host_device

package applets

import (
	"context"
	"errors"
	"os"
	"strings"

	"cnibox/applets/attach"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A deviceRecord is a link of the host as it was before it was moved. The alias of the
// link names it, as with the reference, which keeps nothing else. Since a name can be given
// to another link meanwhile, it takes the address or the index too to tell them apart.
type deviceRecord struct {
	_ [0]func() // it does not compare, which spares the binary the code for that
	recordOwner
	NetNS   string `json:"netns"` // where it went
	Index   uint32 `json:"index"` // there
	Name    string `json:"name"`
	Alias   string `json:"alias"`
	MAC     string `json:"mac"`
	PermMAC string `json:"permMAC"` // of hardware: what it was made with
	MTU     int    `json:"mtu"`     // bytes; 0: not known
	Up      bool   `json:"up"`
	Kind    string `json:"kind"` // empty: hardware, which outlives a namespace
}

// recordOf describes a link as it is.
func recordOf(op *attach.Op, l *rtnl.Link) *deviceRecord {
	return &deviceRecord{recordOwner: ownerOf(op.Attachment), NetNS: op.Call.NetNS, Index: l.Index, Name: l.Name, Alias: l.Alias,
		MAC: l.MAC.String(), PermMAC: l.PermMAC.String(), MTU: l.MTU, Up: l.Up, Kind: l.Kind}
}

// deviceFile is the name of an attachment's record.
func deviceFile(a spec.Attachment) string { return a.Key() + ".json" }

// readDevice reads the record of an attachment; os.ErrNotExist: there is none.
func readDevice(dir records, a spec.Attachment) (*deviceRecord, error) {
	rec := &deviceRecord{}
	err := dir.read(deviceFile(a), rec)
	if err == nil {
		err = spec.CheckIfName(rec.Name)
	}
	return rec, err
}

// eachDevice calls fn with each record that can be read.
func eachDevice(dir records, fn func(name string, rec *deviceRecord) error) error {
	return dir.each(func(name string) error {
		rec := &deviceRecord{}
		if dir.read(name, rec) != nil || spec.CheckIfName(rec.Name) != nil {
			return nil
		}
		return fn(name, rec)
	})
}

// recordDevice writes the record, and registers the way back.
// If the kernel gave the device back, what it was before is on the record of one that has
// lost it. That goes, or a late DEL of it would take the device from this one.
func recordDevice(op *attach.Op, dir records, dev *rtnl.Link) (*deviceRecord, error) {
	rec, own, stale := recordOf(op, dev), deviceFile(op.Attachment), ""
	err := eachDevice(dir, func(name string, old *deviceRecord) error {
		switch {
		case old.returned(dev):
			*rec, stale = *old, name
		case name == own:
			return spec.Errorf(spec.CodeBusy, "the device %s that %s had before waits on the host for its name, which another link has: rename that link, then DEL again", old.Name, op.Attachment)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	rec.recordOwner, rec.NetNS, rec.Index = ownerOf(op.Attachment), op.Call.NetNS, dev.Index
	op.Undo("device "+rec.Name, func(ctx context.Context) error { return rec.giveBack(ctx, op, dir) })
	if err := dir.write(own, rec); err != nil || stale == "" || stale == own {
		return rec, err
	}
	return rec, dir.remove(stale)
}

// removeHostDevice is DEL. A device without a record was moved by the reference, if by
// anybody: its alias is its name, and nothing tells what else it was like.
func removeHostDevice(ctx context.Context, op *attach.Op, c *deviceConf) error {
	dir := recordsOf(op.Request, hostDeviceDir)
	rec, err := readDevice(dir, op.Attachment)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			op.Warn("%v", err)
		}
		l := foreignDevice(op, c)
		if l == nil || spec.CheckIfName(l.Alias) != nil || onRecord(op, dir, l) {
			return dir.remove(deviceFile(op.Attachment))
		}
		rec = recordOf(op, l)
		rec.Name, rec.Alias, rec.Up = l.Alias, "", false
	}
	return rec.giveBack(ctx, op, dir)
}

// foreignDevice finds a link that the reference has moved: the one with our name in the
// container, if it can be the configured one, or that on the host, down, and under a name by
// which a namespace that ends gives links back. Nil: there is none.
func foreignDevice(op *attach.Op, c *deviceConf) *rtnl.Link {
	if op.Cont != nil {
		if l, err := op.Cont.Link(op.IfName); err == nil && c.means(op.Cont, l) {
			return l
		}
		return nil
	}
	links, _ := op.Host.Links()
	for i := range links {
		if l := &links[i]; l.Alias == c.Device && l.Alias != l.Name && !l.Up && isReturned(l.Name, op.IfName) {
			return l
		}
	}
	return nil
}

// onRecord tells whether a link is the device of an attachment that has a record.
func onRecord(op *attach.Op, dir records, l *rtnl.Link) (found bool) {
	eachDevice(dir, func(_ string, rec *deviceRecord) error {
		found = found || rec.returned(l) || rec.NetNS == op.Call.NetNS && rec.entered(l)
		return nil
	})
	return found
}

// isReturned tells the names under which the kernel gives a link back: the one it had in
// the container, or devN if that is taken.
func isReturned(name, ifName string) bool {
	n, ok := strings.CutPrefix(name, "dev")
	return name == ifName || ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// giveBack restores the device and then removes its record, if it has one. The record of a
// device that could not get its name stays, for GC and another DEL.
func (rec *deviceRecord) giveBack(ctx context.Context, op *attach.Op, dir records) error {
	cont := op.Cont
	if cont == nil || rec.NetNS != op.Call.NetNS {
		if ns, err := rtnl.OpenNS(rec.NetNS); err == nil { // DEL and GC are not always told
			defer ns.Close()
			if cont, err = rtnl.Dial(ns); err != nil {
				return err
			}
			defer cont.Close()
		}
	}
	return dir.locked(ctx, func() error {
		done, err := rec.restore(op, cont, dir)
		if err != nil || !done {
			return err
		}
		return dir.remove(deviceFile(rec.attachment()))
	})
}

// collectHostDevices gives back what attachments that are gone have left.
// A device that is nowhere any more costs nothing but its record.
func collectHostDevices(ctx context.Context, op *attach.Op, _ *deviceConf) error {
	valid, dir := op.ValidKeys(), recordsOf(op.Request, hostDeviceDir)
	return eachDevice(dir, func(_ string, rec *deviceRecord) error {
		if rec.Network != op.Network || valid(rec.attachment().Key()) {
			return nil
		}
		return rec.giveBack(ctx, op, dir)
	})
}
