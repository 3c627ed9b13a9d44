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
// link names it, as with the reference, which keeps nothing else.
type deviceRecord struct {
	recordOwner
	NetNS string `json:"netns"` // where it went
	Name  string `json:"name"`
	Alias string `json:"alias"`
	MAC   string `json:"mac"`
	MTU   int    `json:"mtu"` // bytes; 0: not known, as the rest of a device that the reference moved
	Up    bool   `json:"up"`
	Kind  string `json:"kind"` // empty: hardware, which outlives a namespace
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
// Other records of the device are of attachments that have lost it, since it is here:
// they go, or a late DEL of them would take it from this one. If the kernel gave it back,
// what it was before is on one of them.
func recordDevice(op *attach.Op, dir records, dev *rtnl.Link) (*deviceRecord, error) {
	rec, own := &deviceRecord{
		Name: dev.Name, Alias: dev.Alias, MAC: dev.MAC.String(), MTU: dev.MTU, Up: dev.Up, Kind: dev.Kind,
	}, deviceFile(op.Attachment)
	err := eachDevice(dir, func(name string, old *deviceRecord) error {
		if old.Name != dev.Name {
			return nil
		}
		if dev.Alias == dev.Name {
			*rec = *old
		}
		return dir.remove(name)
	})
	if err != nil {
		return nil, err
	}
	rec.recordOwner, rec.NetNS = ownerOf(op.Attachment), op.Call.NetNS
	op.Undo("device "+rec.Name, func(context.Context) error { return rec.giveBack(op, dir, own) })
	return rec, dir.write(own, rec)
}

// lives tells whether the namespace of a record is still there.
func (rec *deviceRecord) lives() bool {
	ns, err := rtnl.OpenNS(rec.NetNS)
	if err != nil {
		return false
	}
	ns.Close()
	return true
}

// removeHostDevice is DEL. A device without a record was moved by the reference, if by
// anybody: its alias is all there is to go by.
func removeHostDevice(_ context.Context, op *attach.Op, c *deviceConf) error {
	dir, name := recordsOf(op.Request, hostDeviceDir), deviceFile(op.Attachment)
	rec, err := readDevice(dir, op.Attachment)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			op.Warn("%v", err)
		}
		if rec = foreignDevice(op, c, dir); rec == nil {
			return dir.remove(name)
		}
	}
	return rec.giveBack(op, dir, name)
}

// foreignDevice makes a record from the alias of a link that the reference has moved: of
// the one with our name in the container, or of the configured one, on the host, down, and
// under a name by which a namespace that ends gives links back. Nil: there is none. An
// alias that another attachment has on record is its own.
func foreignDevice(op *attach.Op, c *deviceConf, dir records) (rec *deviceRecord) {
	conn, links := op.Cont, []rtnl.Link(nil)
	if conn == nil {
		conn = op.Host
	}
	links, _ = conn.Links()
	for i := range links {
		l := &links[i]
		ours := l.Name == op.IfName
		if conn == op.Host {
			ours = l.Alias == c.Device && !l.Up && isReturned(l.Name, op.IfName)
		}
		if ours && l.Alias != l.Name && spec.CheckIfName(l.Alias) == nil {
			rec = &deviceRecord{recordOwner: ownerOf(op.Attachment), NetNS: op.Call.NetNS, Name: l.Alias, Kind: l.Kind}
		}
	}
	eachDevice(dir, func(_ string, other *deviceRecord) error {
		if rec != nil && other.Name == rec.Name {
			rec = nil
		}
		return nil
	})
	return rec
}

// isReturned tells the names under which the kernel gives a link back: the one it had in
// the container, or devN if that is taken.
func isReturned(name, ifName string) bool {
	n, ok := strings.CutPrefix(name, "dev")
	return name == ifName || ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// giveBack restores the device and then removes its record, if it has one. The record of a
// device that could not get its name stays, for GC and another DEL.
func (rec *deviceRecord) giveBack(op *attach.Op, dir records, name string) error {
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
	done, err := rec.restore(op, cont, dir)
	if err != nil || !done || name == "" {
		return err
	}
	return dir.remove(name)
}

// collectHostDevices gives back what attachments that are gone have left.
// A device that is nowhere any more costs nothing but its record.
func collectHostDevices(_ context.Context, op *attach.Op, _ *deviceConf) error {
	stale, dir := op.Stale(), recordsOf(op.Request, hostDeviceDir)
	return eachDevice(dir, func(name string, rec *deviceRecord) error {
		a := spec.Attachment{Network: rec.Network, ContainerID: rec.ContainerID, IfName: rec.IfName}
		if !stale(a.Key()) {
			return nil
		}
		return rec.giveBack(op, dir, name)
	})
}
