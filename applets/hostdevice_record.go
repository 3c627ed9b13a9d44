//go:build !no_host_device

package applets

import (
	"context"
	"errors"
	"fmt"
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

// readDevice reads the record of an attachment; os.ErrNotExist: there is none of it.
func readDevice(dir records, a spec.Attachment) (*deviceRecord, error) {
	rec := &deviceRecord{}
	if err := dir.read(recordName(a), rec); err != nil {
		return nil, err
	}
	if rec.recordOwner != ownerOf(a) || spec.CheckIfName(rec.Name) != nil {
		return nil, fmt.Errorf("record of %s: %w", a, os.ErrNotExist)
	}
	return rec, nil
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
// they go, or a late DEL of them would take it from this one.
func recordDevice(op *attach.Op, dir records, dev *rtnl.Link) (*deviceRecord, error) {
	rec := &deviceRecord{
		recordOwner: ownerOf(op.Attachment), NetNS: op.Call.NetNS,
		Name: dev.Name, Alias: dev.Alias, MAC: dev.MAC.String(), MTU: dev.MTU, Up: dev.Up, Kind: dev.Kind,
	}
	own := recordName(op.Attachment)
	err := eachDevice(dir, func(name string, old *deviceRecord) error {
		switch {
		case name == own && old.recordOwner != rec.recordOwner && old.lives():
			return spec.Errorf(spec.CodeBusy, "%s is the record of %s of container %s", name, old.IfName, old.ContainerID)
		case old.Name != rec.Name:
			return nil
		case dev.Alias == rec.Name: // given back by the kernel: what it was before is on record
			rec.Alias, rec.MAC, rec.MTU, rec.Up = old.Alias, old.MAC, old.MTU, old.Up
		}
		if name != own {
			return dir.remove(name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
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
	dir, name := recordsOf(op.Request, hostDeviceDir), recordName(op.Attachment)
	rec, err := readDevice(dir, op.Attachment)
	if errors.Is(err, os.ErrNotExist) {
		if rec = foreignDevice(op, c, dir); rec == nil {
			return nil
		}
		name = ""
	} else if err != nil {
		op.Warn("%v", err)
		if rec = foreignDevice(op, c, dir); rec == nil {
			return dir.remove(name)
		}
	}
	return rec.giveBack(op, dir, name)
}

// foreignDevice makes a record from the alias of a link that the reference has moved: of
// the one with our name in the container, or of one on the host that is down, has the name
// by which a namespace that ends gives links back, and is selected by the configuration.
// Nil: there is none. An alias that another attachment has on record is its own.
func foreignDevice(op *attach.Op, c *deviceConf, dir records) *deviceRecord {
	var found *rtnl.Link
	if op.Cont != nil {
		found, _ = op.Cont.Link(op.IfName)
	}
	if found == nil {
		found = returnedDevice(op, c)
	}
	if found == nil || found.Alias == found.Name || spec.CheckIfName(found.Alias) != nil {
		return nil
	}
	rec := &deviceRecord{recordOwner: ownerOf(op.Attachment), NetNS: op.Call.NetNS, Name: found.Alias, Kind: found.Kind}
	eachDevice(dir, func(_ string, other *deviceRecord) error {
		if other.Name == found.Alias {
			rec = nil
		}
		return nil
	})
	return rec
}

// returnedDevice looks on the host for foreignDevice.
func returnedDevice(op *attach.Op, c *deviceConf) *rtnl.Link {
	fits := func(l *rtnl.Link) bool { return !l.Up && isReturned(l.Name, op.IfName) }
	if c.resolve(hostSysfs) != nil {
		return nil
	}
	if c.Device == "" {
		if l, err := c.find(op.Host, hostSysfs); err == nil && fits(l) {
			return l
		}
		return nil
	}
	links, err := op.Host.Links()
	if err != nil {
		return nil
	}
	for i := range links {
		if l := &links[i]; l.Alias == c.Device && fits(l) {
			return l
		}
	}
	return nil
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
