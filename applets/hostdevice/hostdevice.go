// Package hostdevice is the CNI plugin host-device: moves a link of the host into the container, and back.
package hostdevice

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "host-device",
	Conf:    plugin{},
	Summary: "moves a link of the host into the container, and back",
	Help: `
key            type    default               meaning
device         string  -                     name of the link on the host, or an alternative name
hwaddr         string  -                     its MAC address
kernelpath     string  -                     its device below /sys/devices/
pciBusID       string  -                     its PCI address, such as 0000:3b:00.2; virtio too
runtimeConfig  object  -                     deviceID (capability deviceID): a PCI address, which
                                             replaces pciBusID, or a device of the auxiliary bus
ipam           object  -                     IPAM plugin, named by its "type"; without it the
                                             link gets no address
dns            object  -                     nameservers, domain, search, options; replaces ipam's
dataDir        string  /run/cni/host-device  stores name, alias, MAC address, MTU and state of the
                                             link until DEL

runtimeConfig.dns (capability dns) replaces dns.
The first selector that is set counts, in this order. While the link is in the container, its
alias is its name on the host. A device bound to vfio-pci, uio_pci_generic or igb_uio is not
moved: only ipam is called.

DEL moves the link back under its old name, and up if it was up; also one that the kernel moved
to the host when the namespace ended. If the name is in use, the link stays on the host as devN,
with a warning, and the next GC or DEL renames it.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = attach.Plugin{Moved: true, DataDir: dataDir, New: func() attach.Driver { return new(plugin) }}

// dataDir is the default directory of the records.
const dataDir = "/run/cni/host-device"

// plugin has the keys; Help describes each.
type plugin struct {
	attach.Defaults
	Device        string `json:"device"`
	HWAddr        string `json:"hwaddr"`
	KernelPath    string `json:"kernelpath"`
	PCIBusID      string `json:"pciBusID"`
	DataDir       string `json:"dataDir"`
	RuntimeConfig struct {
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`

	sysfsDir string // of the device; empty: it is selected by name or address
	missing  bool   // the device of deviceID is: ADD and STATUS report it
	dpdk     bool   // bound to a driver that passes it to a program: there is no link
}

// dir is where the records are stored.
func (p *plugin) dir(call spec.Call) record.Dir {
	dir, _ := record.ResolveDir(call, p.DataDir, dataDir) // validate has reported the error
	return dir
}

// Resources are that other hosts are on the link's segment.
func (p *plugin) Resources() spec.Resources { return spec.Resources{Shared: true, NoNetdev: p.dpdk} }

// Link moves the device into the container. The record is written before the
// first change, then the alias is set: from there on undo and DEL find the device, whatever
// happens.
//
// The kernel moves it under its present name and renames it in the container, where no udev
// sees that. A name that is taken there would stop it half way, so that is checked first.
func (p *plugin) Link(op *attach.Op) error {
	if p.missing {
		return p.noDevice(spec.CodeConfig)
	}
	if p.dpdk { // the addresses are for the program that drives the device
		op.PCIID = p.PCIBusID
		return nil
	}
	_, err := op.Cont.Link(op.IfName)
	if err == nil {
		return op.ExplainExists(os.ErrExist)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	dir := p.dir(op.Call)
	if old, err := readDevice(dir, record.Name(op.Attachment)); err == nil { // its DEL never came
		if err := old.refuseInUse(op); err != nil {
			return err
		}
		if err := old.returnDevice(op.Context(), op, dir); err != nil {
			return err
		}
		if _, err := readDevice(dir, record.Name(op.Attachment)); err == nil {
			return spec.Errorf(spec.CodeBusy, "the device %s that %s had before waits on the host for its name, which another link has: rename that link, then DEL again", old.Data.Name, op.Attachment)
		}
	}
	unlock, err := dir.Make().Lock(op.Context())
	if err != nil {
		return err
	}
	defer unlock()
	return p.moveIn(op, dir)
}

// moveIn is the part of ADD that is done under the lock of the records.
func (p *plugin) moveIn(op *attach.Op, dir record.Dir) error {
	dev, err := p.findReturned(op, dir)
	if err != nil {
		e := spec.Errorf(spec.CodeConfig, "failed to find host device: %w", err)
		if p.Device != "" {
			return e.WithDetails(`"device" must be the name of an existing link of the host`).AtKey("device")
		}
		return e
	}
	if dev.Flags&unix.IFF_LOOPBACK != 0 {
		return spec.Errorf(spec.CodeConfig, "failed to move %s: a loopback device cannot leave its namespace", dev.Name)
	}
	op.PCIID = HostSysfs.pciOf(dev.Name)
	rec, err := recordDevice(op, dir, dev)
	if err != nil {
		return err
	}
	if err := op.Host.SetLink(dev.Index, rtnl.LinkChange{Alias: &rec.Data.Name}); err != nil {
		return err
	}
	if err := op.Host.SetLink(dev.Index, rtnl.LinkChange{NS: op.NS, Name: &op.IfName}); err != nil {
		return explainMove(op, dev, err)
	}
	if op.Link, err = op.Cont.Link(op.IfName); err != nil {
		return err
	}
	if rec.Index != op.Link.Index { // the kernel chose another, as that one was taken there
		rec.Index = op.Link.Index
		if err := rec.Write(dir); err != nil {
			return err
		}
	}
	return nil
}

// explainMove says why the kernel refused to move a link. The code is 7 for what the
// configuration can change.
func explainMove(op *attach.Op, dev *rtnl.Link, err error) error {
	code, why := spec.CodeConfig, ""
	switch {
	case errors.Is(err, unix.EINVAL):
		why = ": a link of this kind, such as a bridge, cannot leave its namespace: select another"
	case errors.Is(err, os.ErrExist):
		why = ": an alternative name of it is taken there, or is CNI_IFNAME: remove it (ip link property del), or choose another CNI_IFNAME"
	default:
		code = spec.CodeInternal
	}
	return spec.Errorf(code, "failed to move %s to %s%s: %w", dev.Name, op.Call.NetNS, why, err)
}

// Check checks that the link is the device that ADD moved.
func (p *plugin) Check(op *attach.Op) error {
	if rec, err := readDevice(p.dir(op.Call), record.Name(op.Attachment)); err == nil && op.Link.Alias != rec.Data.Name {
		return attach.Lost("interface %s in %s is not the device %s of the host: its alias is %q", op.IfName, op.Call.NetNS, rec.Data.Name, op.Link.Alias)
	}
	return nil
}

// Found reports a link without an alias, which this plugin has not moved.
func (p *plugin) Found(op *attach.Op) error {
	if p.dpdk {
		op.PCIID = p.PCIBusID
	} else if op.Link.Alias == "" {
		return spec.Errorf(spec.CodeUnknown, "no attachment %s is known: %s in %s is not a device of the host", op.Attachment, op.IfName, op.Call.NetNS)
	}
	return nil
}

// Remove gives the device back.
func (p *plugin) Remove(op *attach.Op) error { return remove(op.Context(), op, p) }

// Collect returns the devices of attachments that are gone to the host.
func (*plugin) Collect(op *attach.Op) error { return collect(op.Context(), op) }

// Probe is for STATUS: records can be stored, and the device is there, whatever its driver and
// namespace are.
func (p *plugin) Probe(op *attach.Op) error {
	dir := p.dir(op.Call)
	if err := dir.CheckWritable(); err != nil {
		return err
	}
	if p.missing {
		return p.noDevice(spec.CodeNotReady)
	}
	if p.sysfsDir != "" {
		if !exists(p.sysfsDir) {
			return fmt.Errorf("there is no device %s", p.sysfsDir)
		}
		return nil
	}
	if _, err := p.find(op.Host); err != nil && !(errors.Is(err, os.ErrNotExist) && p.inContainer(dir)) {
		return fmt.Errorf("failed to find host device: %w", err)
	}
	return nil
}

// inContainer reports whether the device is in one of the containers that have a record.
func (p *plugin) inContainer(dir record.Dir) (found bool) {
	// what cannot be opened or read does not have it
	_ = eachDevice(dir, func(rec deviceRecord) error {
		ns, err := netns.Open(rec.NetNS)
		if err != nil {
			return err
		}
		defer ns.Close()
		cont, err := rtnl.Dial(ns)
		if err != nil {
			return err
		}
		defer cont.Close()
		link, err := cont.LinkAt(rec.Index)
		found = found || err == nil && p.matches(cont, link)
		return err
	})
	return found
}
