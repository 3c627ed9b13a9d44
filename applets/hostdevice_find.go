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

// pci and aux are the folders of a device of the PCI bus and of the auxiliary bus.
func (s sysfs) pci(id string) string { return path.Join(string(s), "bus/pci/devices", id) }
func (s sysfs) aux(id string) string { return path.Join(string(s), "bus/auxiliary/devices", id) }

// has tells whether a folder is there.
func (s sysfs) has(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// passedThrough tells whether a device is bound to a driver that hands it to a program
// (VFIO, UIO): it has no link then, and needs none.
func (s sysfs) passedThrough(pci string) bool {
	target, err := os.Readlink(path.Join(s.pci(pci), "driver"))
	if err != nil {
		return false
	}
	switch driver := path.Base(target); driver {
	case "vfio-pci", "uio_pci_generic", "igb_uio":
		return true
	default: // those of vendors, as mlx5_vfio_pci
		return strings.HasSuffix(driver, "_vfio_pci")
	}
}

// netOf returns the name of the link of a device, or of the virtio device in it. The
// error is os.ErrNotExist if there is none in this namespace.
func (s sysfs) netOf(dir string) (string, error) {
	dirs := []string{dir}
	for _, name := range sorted(dir) {
		if strings.HasPrefix(name, "virtio") {
			dirs = append(dirs, path.Join(dir, name))
		}
	}
	for _, d := range dirs {
		for _, name := range sorted(path.Join(d, "net")) {
			if spec.CheckIfName(name) == nil {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("no network device in %s: %w", dir, os.ErrNotExist)
}

// sorted lists a folder; the first is the same each time. One that is not there is empty.
func sorted(dir string) []string {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for i := range names { // few, and without the package sort
		for j := i; j > 0 && names[j] < names[j-1]; j-- {
			names[j], names[j-1] = names[j-1], names[j]
		}
	}
	return names
}

// pciOf returns the PCI address of a link of this namespace, or of the virtio device
// that it is; empty: it is neither's.
func (s sysfs) pciOf(link string) string {
	target, err := os.Readlink(path.Join(string(s), "class/net", link))
	if err != nil { // …/0000:00:03.0/virtio0/net/eth0
		return ""
	}
	dev := path.Dir(path.Dir(target))
	if strings.HasPrefix(path.Base(dev), "virtio") {
		dev = path.Dir(dev)
	}
	if id := path.Base(dev); isPCI(id) {
		return id
	}
	return ""
}

// kernelPath maps a path as it stands in a configuration into s.
func (s sysfs) kernelPath(p string) string {
	return path.Join(string(s), strings.TrimPrefix(p, "/sys/"))
}

// resolve makes one selector of runtimeConfig.deviceID and pciBusID. The first, which a
// device plugin has chosen, goes before the second. The code is 7.
func (c *deviceConf) resolve(s sysfs) error {
	id := c.RuntimeConfig.DeviceID
	switch {
	case id == "":
	case isPCI(strings.ToLower(id)) && s.has(s.pci(strings.ToLower(id))):
		c.PCIBusID = strings.ToLower(id)
	case isDeviceName(id) && s.has(s.aux(id)):
		c.PCIBusID, c.aux = "", id
	default:
		return spec.Errorf(spec.CodeConfig, "runtime config DeviceID %q not found or unsupported: it is neither a PCI nor an auxiliary device of this host", id)
	}
	c.PCIBusID = strings.ToLower(c.PCIBusID)
	if c.Device == "" && c.HWAddr == "" && c.KernelPath == "" && c.PCIBusID == "" && c.aux == "" {
		return spec.Errorf(spec.CodeConfig, `specify either "device", "hwaddr", "kernelpath" or "pciBusID"`)
	}
	c.dpdk = c.Device == "" && c.HWAddr == "" && c.KernelPath == "" && c.PCIBusID != "" && s.passedThrough(c.PCIBusID)
	return nil
}

// find returns the link that the configuration selects, of those of the host.
// The error is os.ErrNotExist if there is none.
func (c *deviceConf) find(host *rtnl.Conn, s sysfs) (*rtnl.Link, error) {
	name, err := c.Device, error(nil)
	switch {
	case c.Device != "":
	case c.HWAddr != "":
		return c.findByMAC(host)
	case c.KernelPath != "":
		name, err = s.netOf(s.kernelPath(c.KernelPath))
	case c.PCIBusID != "":
		name, err = s.netOf(s.pci(c.PCIBusID))
	default:
		name, err = s.netOf(s.aux(c.aux))
	}
	if err != nil {
		return nil, err
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

// validate checks the selectors against what they may be; whether there is such a
// device is for later.
func (c *deviceConf) validate() error {
	if c.Device != "" {
		if err := spec.CheckIfName(c.Device); err != nil {
			return fmt.Errorf(`"device" %q: %v`, c.Device, err) // not wrapped: its code is that of CNI_IFNAME
		}
	}
	if c.HWAddr != "" {
		if _, err := spec.ParseMAC(c.HWAddr); err != nil {
			return fmt.Errorf(`"hwaddr": %w`, err)
		}
	}
	switch k := c.KernelPath; {
	case k != "" && (path.Clean(k) != k || !strings.HasPrefix(k, "/sys/devices/") || strings.Contains(k, "\x00")):
		return fmt.Errorf(`"kernelpath" %q must be an absolute path below /sys/devices/, without . and ..`, k)
	case c.PCIBusID != "" && !isPCI(strings.ToLower(c.PCIBusID)):
		return fmt.Errorf(`"pciBusID" %q is no PCI address, as 0000:3b:00.2`, c.PCIBusID)
	case c.Device == "" && c.HWAddr == "" && k == "" && c.PCIBusID == "" && c.RuntimeConfig.DeviceID == "":
		return errors.New(`specify either "device", "hwaddr", "kernelpath" or "pciBusID"`)
	}
	_, err := recordsIn(c.DataDir, hostDeviceDir)
	return err
}
