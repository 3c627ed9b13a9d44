//go:build !no_host_device

package applets

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"cnibox/rtnl"
	"cnibox/spec"
)

// A sysfs is a folder with what the kernel tells of devices: sysfs(5). Names that come
// from outside are checked before they become a part of a path in it.
type sysfs string

// hostSysfs is the host's; tests have their own.
var hostSysfs sysfs = "/sys"

// isPCI tells an address of the PCI bus, as 0000:3b:00.2, in the letters of sysfs.
func isPCI(id string) bool {
	domain, rest, ok := strings.Cut(id, ":")
	if !ok || len(domain) < 4 || len(domain) > 8 || len(rest) != len("00:00.0") || rest[2] != ':' || rest[5] != '.' || rest[6] > '7' {
		return false
	}
	digits := domain + rest[:2] + rest[3:5] + rest[6:]
	return strings.Trim(digits, "0123456789abcdef") == ""
}

// isDeviceName tells a name of a device that can be a part of a path.
func isDeviceName(id string) bool {
	return id != "" && len(id) <= 255 && id != "." && id != ".." && !strings.ContainsAny(id, "/\x00")
}

// has tells whether a file is there.
func has(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// passedThrough tells whether a PCI device is bound to a driver that hands it to a program
// (VFIO, UIO): it has no link then, and needs none.
func passedThrough(dir string) bool {
	target, _ := os.Readlink(dir + "/driver")
	switch driver := path.Base(target); driver {
	case "vfio-pci", "uio_pci_generic", "igb_uio":
		return true
	default: // those of vendors, as mlx5_vfio_pci
		return strings.HasSuffix(driver, "_vfio_pci")
	}
}

// netOf returns the name of the link of a device, or of the virtio device in it; empty:
// it has none in this namespace.
func netOf(dir string) string {
	if name := firstIn(dir+"/net", ""); name != "" {
		return name
	}
	if name := firstIn(dir, "virtio"); name != "" {
		return firstIn(dir+"/"+name+"/net", "")
	}
	return ""
}

// firstIn returns the first name in a directory that begins so, by the order of bytes.
func firstIn(dir, prefix string) string {
	entries, _ := os.ReadDir(dir) // sorted; none: there is no such directory
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			return e.Name()
		}
	}
	return ""
}

// pciOf returns the PCI address of a link of this namespace, or of the virtio device
// that it is; empty: it is neither's.
func (s sysfs) pciOf(link string) string {
	target, _ := os.Readlink(string(s) + "/class/net/" + link)
	parts := strings.Split(target, "/") // …/0000:00:03.0/virtio0/net/eth0
	n := len(parts) - 3
	if n > 0 && strings.HasPrefix(parts[n], "virtio") {
		n--
	}
	if n > 0 && isPCI(parts[n]) {
		return parts[n]
	}
	return ""
}

// resolve finds the folder of the device in sysfs, if one is selected by its place.
// runtimeConfig.deviceID, which a device plugin has chosen, goes before pciBusID.
func (c *deviceConf) resolve(s sysfs) error {
	pci, aux := string(s)+"/bus/pci/devices/", string(s)+"/bus/auxiliary/devices/"
	id, bus := c.RuntimeConfig.DeviceID, pci+strings.ToLower(c.PCIBusID)
	switch lower := strings.ToLower(id); {
	case id == "":
	case isPCI(lower) && has(pci+lower):
		c.PCIBusID, bus = lower, pci+lower
	case isDeviceName(id) && has(aux+id):
		c.PCIBusID, bus = id, aux+id
	default:
		return spec.Errorf(spec.CodeConfig, "runtime config DeviceID %s not found or unsupported", id).
			WithDetails("it is neither a PCI nor an auxiliary device of this host")
	}
	switch {
	case c.Device != "" || c.HWAddr != "":
	case c.KernelPath != "":
		c.folder = string(s) + strings.TrimPrefix(c.KernelPath, "/sys")
	case c.PCIBusID != "":
		c.folder, c.dpdk = bus, passedThrough(bus)
	default:
		return errors.New(`specify either "device", "hwaddr", "kernelpath" or "pciBusID"`)
	}
	return nil
}

// find returns the link that the configuration selects, of those of the host.
// The error is os.ErrNotExist if there is none.
func (c *deviceConf) find(host *rtnl.Conn) (*rtnl.Link, error) {
	if c.HWAddr != "" && c.Device == "" {
		return c.findByMAC(host)
	}
	name := c.Device
	if c.folder != "" {
		name = netOf(c.folder)
	}
	if name == "" {
		return nil, fmt.Errorf("no network device in %s: %w", c.folder, os.ErrNotExist)
	}
	return host.Link(name)
}

// findByMAC takes hardware before what sits on it and has the same address: bridges,
// bonds and VLANs.
func (c *deviceConf) findByMAC(host *rtnl.Conn) (*rtnl.Link, error) {
	want, err := spec.ParseMAC(c.HWAddr)
	if err != nil {
		return nil, err
	}
	links, err := host.Links()
	if err != nil {
		return nil, err
	}
	var found *rtnl.Link
	for i := range links {
		if l := &links[i]; bytes.Equal(l.MAC, want) && (found == nil || l.Kind == "" && found.Kind != "") {
			found = l
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no link has the address %s: %w", want, os.ErrNotExist)
	}
	return found, nil
}

// means tells whether a link in a container can be the one that the configuration selects,
// which was a link of the host: by its old name, that is its alias, or an alternative name,
// which goes along; by its address; or by the device behind it, as sysfs no longer
// shows what is there. Older kernels do not tell that of hardware, which then may be it.
func (c *deviceConf) means(cont *rtnl.Conn, l *rtnl.Link) bool {
	switch {
	case c.Device != "":
		named, err := cont.Link(c.Device)
		return l.Alias == c.Device || err == nil && named.Index == l.Index && l.Name != c.Device
	case c.HWAddr != "":
		want, err := spec.ParseMAC(c.HWAddr)
		return err == nil && bytes.Equal(l.MAC, want)
	case c.folder == "" || c.dpdk || l.Kind != "":
		return false
	}
	return l.Device == "" || l.Device == path.Base(c.folder) || has(c.folder+"/"+l.Device)
}

// validate checks the selectors against what they may be, and looks at the place of a
// device in sysfs; whether there is a link is for later.
func (c *deviceConf) validate() error {
	if c.Device != "" {
		if err := spec.CheckLinkName(c.Device); err != nil {
			return fmt.Errorf(`"device" %q: %v`, c.Device, err) // not wrapped: its code is that of CNI_IFNAME
		}
	}
	if c.HWAddr != "" {
		if _, err := spec.ParseMAC(c.HWAddr); err != nil {
			return fmt.Errorf(`"hwaddr": %w`, err)
		}
	}
	c.KernelPath = strings.TrimSuffix(c.KernelPath, "/")
	switch k := c.KernelPath; {
	case k != "" && (path.Clean(k) != k || !strings.HasPrefix(k, "/sys/devices/") || strings.Contains(k, "\x00")):
		return fmt.Errorf(`"kernelpath" %q must be an absolute path below /sys/devices/, without . and ..`, k)
	case c.PCIBusID != "" && !isPCI(strings.ToLower(c.PCIBusID)):
		return fmt.Errorf(`"pciBusID" %q is no PCI address, as 0000:3b:00.2`, c.PCIBusID)
	}
	if _, err := recordsIn(c.DataDir, hostDeviceDir); err != nil {
		return err
	}
	return c.resolve(hostSysfs)
}
