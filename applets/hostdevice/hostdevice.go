// Package hostdevice is the CNI plugin host-device: moves a link of the host into the container, and back.
package hostdevice

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/applets/attach"
	"cnibox/applets/record"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "host-device",
	Conf:    conf{},
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
	Verbs: func() spec.Verbs {
		v := attach.Verbs(attach.Interface[*conf]{
			NoMAC: true, NoNetdev: func(c *conf) bool { return c.dpdk }, Validate: (*conf).validate, Create: create, Verify: verify,
			Shared:   func(*conf) bool { return true },
			Describe: describe, Remove: remove, Probe: probe, Collect: collect,
		})
		v.Records = record.At(dataDir)
		return v
	},
}

// dataDir is where the records are stored by default.
const dataDir = "/run/cni/host-device"

// conf has the configuration's keys, which Help describes.
type conf struct {
	Device        string `json:"device"`
	HWAddr        string `json:"hwaddr"`
	KernelPath    string `json:"kernelpath"`
	PCIBusID      string `json:"pciBusID"`
	DataDir       string `json:"dataDir"`
	RuntimeConfig struct {
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`

	sysfsDir string // of the device; empty: it is selected by name or address
	absent   bool   // the device of deviceID is: ADD and STATUS report it
	dpdk     bool   // bound to a driver that passes it to a program: there is no link
}

// dir is where the records are stored.
func (c *conf) dir(call spec.Call) record.Dir {
	dir, _ := record.In(call, c.DataDir, dataDir) // validate has reported the error
	return dir
}

// create moves the device into the container. The record is written before the
// first change, then the alias is set: from there on undo and DEL find the device, whatever
// happens.
//
// The kernel moves it under its present name and renames it in the container, where no udev
// sees that. A name that is taken there would stop it half way, so that is checked first.
func create(ctx context.Context, op *attach.Op, c *conf) error {
	if c.absent {
		return c.noDevice(spec.CodeConfig)
	}
	if c.dpdk { // the addresses are for the program that drives the device
		addPassedThrough(op, c)
		return nil
	}
	_, err := op.Cont.Link(op.IfName)
	if err == nil {
		return op.Exists(os.ErrExist)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	dir := c.dir(op.Call)
	if old, err := readDevice(dir, deviceFile(op.Attachment)); err == nil { // its DEL never came
		if err := old.refuseInUse(op); err != nil {
			return err
		}
		if err := old.giveBack(ctx, op, dir); err != nil {
			return err
		}
		if _, err := readDevice(dir, deviceFile(op.Attachment)); err == nil {
			return spec.Errorf(spec.CodeBusy, "the device %s that %s had before waits on the host for its name, which another link has: rename that link, then DEL again", old.Name, op.Attachment)
		}
	}
	return dir.Make().Locked(ctx, func() error { return moveIn(op, c, dir) })
}

// moveIn is the part of ADD that is done under the lock of the records.
func moveIn(op *attach.Op, c *conf, dir record.Dir) error {
	restoreReturned(op, dir)
	dev, err := c.find(op.Host)
	if err != nil {
		e := spec.Errorf(spec.CodeConfig, "failed to find host device: %w", err)
		if c.Device != "" {
			e = e.WithDetails(`"device" must be the name of an existing link of the host`).AtKey("device")
		}
		return e
	}
	if dev.Flags&unix.IFF_LOOPBACK != 0 {
		return spec.Errorf(spec.CodeConfig, "failed to move %s: a loopback device cannot leave its namespace", dev.Name)
	}
	pci := HostSysfs.pciOf(dev.Name)
	rec, err := recordDevice(op, dir, dev)
	if err != nil {
		return err
	}
	if err := op.Host.SetLink(dev.Index, rtnl.LinkChange{Alias: &rec.Name}); err != nil {
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
		if err := dir.Write(deviceFile(op.Attachment), rec); err != nil {
			return err
		}
	}
	entry := op.ContainerInterface()
	entry.PCIID = pci
	op.Container = op.AddInterface(entry)
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

// addPassedThrough enters a device without a link into the result.
func addPassedThrough(op *attach.Op, c *conf) {
	op.Container = op.AddInterface(spec.Interface{Name: op.IfName, Sandbox: op.Call.NetNS, PCIID: c.PCIBusID})
}

// verify checks that the link is the device that ADD moved.
func verify(_ context.Context, op *attach.Op, c *conf) error {
	if rec, err := readDevice(c.dir(op.Call), deviceFile(op.Attachment)); err == nil && op.Link.Alias != rec.Name {
		return attach.Mismatch("interface %s in %s is not the device %s of the host: its alias is %q", op.IfName, op.Call.NetNS, rec.Name, op.Link.Alias)
	}
	return nil
}

// describe is for GET. A link without an alias was not moved by this plugin.
func describe(_ context.Context, op *attach.Op, c *conf) error {
	switch {
	case c.dpdk:
		addPassedThrough(op, c)
		return nil
	case op.Link.Alias == "":
		return spec.Errorf(spec.CodeUnknown, "no attachment %s is known: %s in %s is no device of the host", op.Attachment, op.IfName, op.Call.NetNS)
	}
	op.Container = op.AddInterface(op.ContainerInterface())
	return nil
}

// probe is for STATUS: records can be stored, and the device is there, whatever its driver and
// namespace are.
func probe(_ context.Context, r *spec.Request, c *conf) error {
	dir := c.dir(r.Call)
	if err := dir.Ready(); err != nil {
		return err
	}
	if c.absent {
		return c.noDevice(spec.CodeNotReady)
	}
	if c.sysfsDir != "" {
		if !exists(c.sysfsDir) {
			return fmt.Errorf("there is no device %s", c.sysfsDir)
		}
		return nil
	}
	host, err := rtnl.Dial(rtnl.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	if _, err := c.find(host); err != nil && !(errors.Is(err, os.ErrNotExist) && c.inContainer(dir)) {
		return fmt.Errorf("failed to find host device: %w", err)
	}
	return nil
}

// inContainer reports whether the device is in one of the containers that have a record.
func (c *conf) inContainer(dir record.Dir) (found bool) {
	// what cannot be opened or read does not have it
	_ = eachDevice(dir, func(rec *deviceRecord) error {
		ns, err := rtnl.OpenNS(rec.NetNS)
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
		found = found || err == nil && c.matches(cont, link)
		return err
	})
	return found
}
