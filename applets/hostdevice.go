//go:build !no_host_device

package applets

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/applets/attach"
	"cnibox/rtnl"
	"cnibox/spec"
)

func init() {
	register(&Applet{
		Name:    "host-device",
		Summary: "moves a link of the host into the container, and back",
		Help: `
key            type    default               meaning
device         string  -                     name of the link on the host; an alternative one too
hwaddr         string  -                     its MAC address
kernelpath     string  -                     its device below /sys/devices/
pciBusID       string  -                     its PCI address, as 0000:3b:00.2; virtio too
runtimeConfig  object  -                     deviceID (capability deviceID): PCI address, before
                                             pciBusID, or a device of the auxiliary bus
ipam           object  -                     address plugin, named by its "type"; none: none
dns            object  -                     nameservers, domain, search, options; instead of ipam's
dataDir        string  /run/cni/host-device  where name, alias, MAC address, MTU and state of the
                                             link are kept until DEL

Before dns goes runtimeConfig.dns (capability dns).
The first selector that is there counts. While the link is in the container, its alias is the
name it had. A device bound to vfio-pci, uio_pci_generic or igb_uio is not touched: only ipam is
asked.

DEL gives the link back under its old name, up if it was; also one that the kernel gave back
when the namespace ended. If the name is taken by a stranger it comes back as devN, with
a warning, and gets its name in the first GC or DEL that finds it free.`,
		Verbs: attach.Interface[*deviceConf]{
			NoMAC: true, Validate: (*deviceConf).validate, Create: createHostDevice, Verify: verifyHostDevice,
			Describe: describeHostDevice, Remove: removeHostDevice, Probe: probeHostDevice, Collect: collectHostDevices,
		}.Verbs(),
	})
}

// hostDeviceDir is where the records are.
const hostDeviceDir = "/run/cni/host-device"

// deviceConf are the keys; Help tells each.
type deviceConf struct {
	_             [0]func() // as in deviceRecord
	Device        string    `json:"device"`
	HWAddr        string    `json:"hwaddr"`
	KernelPath    string    `json:"kernelpath"`
	PCIBusID      string    `json:"pciBusID"`
	DataDir       string    `json:"dataDir"`
	RuntimeConfig struct {
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`

	folder string // of the device in sysfs; empty: it is selected otherwise
	dpdk   bool   // passed through: there is no link
}

// Linkless tells the flow that there is no link for it to look at.
func (c *deviceConf) Linkless() bool { return c.dpdk }

// dir is where the records are, whatever else the configuration says.
func (c *deviceConf) dir() records {
	dir, _ := recordsIn(c.DataDir, hostDeviceDir) // validate has told
	return dir
}

// createHostDevice moves the link. Its record is written first, then its alias, so that
// whatever happens after can be taken back, by this process or by DEL.
//
// The kernel moves it under the name it has and gives it the new one in the container,
// where no udev renames it. A name that is taken there would leave it half way: it is
// looked for before, and the undo finds the link by its alias.
func createHostDevice(ctx context.Context, op *attach.Op, c *deviceConf) error {
	if c.dpdk { // the addresses are for the program that has the device
		passedThroughEntry(op, c)
		return nil
	}
	op.DAD = true // others are on its segment
	_, err := op.Cont.Link(op.IfName)
	if err == nil {
		return op.Exists(os.ErrExist)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	dir := c.dir()
	if old, err := readDevice(dir, op.Attachment); err == nil { // of an ADD whose DEL is due
		if err := old.giveBack(ctx, op, dir); err != nil {
			return err
		}
	}
	return dir.made().locked(ctx, func() error { return moveHostDevice(op, c, dir) })
}

// moveHostDevice is createHostDevice under the lock.
func moveHostDevice(op *attach.Op, c *deviceConf, dir records) error {
	dev, err := findOrLost(op, c, dir)
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "failed to find host device: %w", err)
	}
	if dev.Flags&unix.IFF_LOOPBACK != 0 {
		return spec.Errorf(spec.CodeConfig, "failed to move %s: a loopback device stays where it is", dev.Name)
	}
	pci := hostSysfs.pciOf(dev.Name)
	rec, err := recordDevice(op, dir, dev)
	if err != nil {
		return err
	}
	if err := op.Host.SetLink(dev.Index, rtnl.LinkChange{Alias: &rec.Name}); err != nil {
		return err
	}
	if err := op.Host.SetLink(dev.Index, rtnl.LinkChange{NS: op.NS, Name: &op.IfName}); err != nil {
		return unmoved(op, dev, err)
	}
	if op.Link, err = op.Cont.Link(op.IfName); err != nil {
		return err
	}
	if rec.Index != op.Link.Index { // another link has that one there
		rec.Index = op.Link.Index
		if err := dir.write(deviceFile(op.Attachment), rec); err != nil {
			return err
		}
	}
	entry := op.ContainerInterface()
	entry.PCIID = pci
	op.Container = op.AddInterface(entry)
	return nil
}

// unmoved tells why the kernel does not move a link. The code is 7 for what the
// configuration has to change.
func unmoved(op *attach.Op, dev *rtnl.Link, err error) error {
	code, why := spec.CodeConfig, ""
	switch {
	case errors.Is(err, unix.EINVAL):
		why = ": a link of this kind stays in its namespace, as bridges do: select another"
	case errors.Is(err, os.ErrExist):
		why = ": an alternative name of it is taken there, or is CNI_IFNAME: remove it (ip link property del), or choose another CNI_IFNAME"
	default:
		code = spec.CodeInternal
	}
	return spec.Errorf(code, "failed to move %s to %s%s: %w", dev.Name, op.Call.NetNS, why, err)
}

// passedThroughEntry is the result's entry for a device that has no link.
func passedThroughEntry(op *attach.Op, c *deviceConf) {
	op.Container = op.AddInterface(spec.Interface{Name: op.IfName, Sandbox: op.Call.NetNS, PCIID: c.PCIBusID})
}

// findOrLost finds the link. One that is not there under its name may be one that the
// kernel gave back under another when its namespace ended, and nobody has fetched since.
func findOrLost(op *attach.Op, c *deviceConf, dir records) (*rtnl.Link, error) {
	dev, err := c.find(op.Host)
	if c.Device == "" || !errors.Is(err, os.ErrNotExist) {
		return dev, err
	}
	eachDevice(dir, func(_ string, rec *deviceRecord) error {
		if rec.Name != c.Device {
			return nil
		}
		if lost, _ := rec.search(op.Host, rec.returned); lost != nil {
			dev, err = lost, nil
		}
		return nil
	})
	return dev, err
}

// verifyHostDevice wants the link to be the device that was moved.
func verifyHostDevice(_ context.Context, op *attach.Op, c *deviceConf) error {
	if rec, err := readDevice(c.dir(), op.Attachment); err == nil && op.Link.Alias != rec.Name {
		return attach.Mismatch("interface %s in %s is not the device %s of the host: its alias is %q", op.IfName, op.Call.NetNS, rec.Name, op.Link.Alias)
	}
	return nil
}

// describeHostDevice is for GET: a link that nobody has moved here is none of ours.
func describeHostDevice(op *attach.Op, c *deviceConf) error {
	switch {
	case c.dpdk:
		passedThroughEntry(op, c)
		return nil
	case op.Link.Alias == "":
		return spec.Errorf(spec.CodeUnknown, "no attachment %s is known: %s in %s is no device of the host", op.Attachment, op.IfName, op.Call.NetNS)
	}
	op.Container = op.AddInterface(op.ContainerInterface())
	return nil
}

// probeHostDevice tells whether records can be written, and whether the hardware is there,
// bound to whatever driver and in whatever namespace.
func probeHostDevice(_ context.Context, _ *spec.Request, c *deviceConf) error {
	if c.dir().notDir() {
		return fmt.Errorf("data directory %s is not a directory", c.dir())
	}
	if c.folder != "" && !has(c.folder) {
		return fmt.Errorf("there is no device %s", c.folder)
	}
	return nil
}
