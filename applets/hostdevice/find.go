package hostdevice

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"cnibox/applets/record"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A Sysfs is the directory where sysfs(5) is mounted. Names from a configuration are checked
// before they become a part of a path in it.
type Sysfs string

// HostSysfs is that of the host. Tests replace it.
var HostSysfs Sysfs = "/sys"

// isPCI reports whether id is a PCI address as sysfs writes it, such as 0000:3b:00.2.
func isPCI(id string) bool {
	domain, rest, ok := strings.Cut(id, ":")
	if !ok || len(domain) < 4 || len(domain) > 8 || len(rest) != len("00:00.0") || rest[2] != ':' || rest[5] != '.' || rest[6] > '7' {
		return false
	}
	digits := domain + rest[:2] + rest[3:5] + rest[6:]
	return strings.Trim(digits, "0123456789abcdef") == ""
}

// isDeviceName reports whether id can be the last part of a path.
func isDeviceName(id string) bool {
	return id != "" && len(id) <= 255 && id != "." && id != ".." && !strings.ContainsAny(id, "/\x00")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// passedThrough reports whether a PCI device is bound to a driver that passes it to a program
// (VFIO, UIO): it has no link then.
func passedThrough(dir string) bool {
	target, _ := os.Readlink(dir + "/driver")
	switch driver := path.Base(target); driver {
	case "vfio-pci", "uio_pci_generic", "igb_uio":
		return true
	default: // those of vendors, as mlx5_vfio_pci
		return strings.HasSuffix(driver, "_vfio_pci")
	}
}

// linkOfDevice returns the name of the link of a device, or of the virtio device in it; empty:
// it has none in this namespace.
func linkOfDevice(dir string) string {
	if name := firstIn(dir+"/net", ""); name != "" {
		return name
	}
	if name := firstIn(dir, "virtio"); name != "" {
		return firstIn(dir+"/"+name+"/net", "")
	}
	return ""
}

// firstIn returns the first name in a directory that has the prefix; empty: there is none.
func firstIn(dir, prefix string) string {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			return e.Name()
		}
	}
	return ""
}

// pciOf returns the PCI address of a link of this namespace, which may be a virtio device;
// empty: it has none.
func (s Sysfs) pciOf(link string) string {
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

// resolve finds the directory of the device in sysfs, if it is selected by its path or bus.
// runtimeConfig.deviceID, which a device plugin chooses, replaces pciBusID.
func (c *conf) resolve(s Sysfs) error {
	pci, aux := string(s)+"/bus/pci/devices/", string(s)+"/bus/auxiliary/devices/"
	id, bus := c.RuntimeConfig.DeviceID, pci+strings.ToLower(c.PCIBusID)
	if id != "" {
		c.PCIBusID, bus = id, aux+id
		if lower := strings.ToLower(id); isPCI(lower) {
			c.PCIBusID, bus = lower, pci+lower
		}
		if !isDeviceName(id) {
			return c.noDevice(spec.CodeConfig)
		}
		c.absent = !exists(bus)
	}
	switch {
	case c.Device != "" || c.HWAddr != "":
	case c.KernelPath != "":
		c.sysfsDir = string(s) + strings.TrimPrefix(c.KernelPath, "/sys")
	case c.PCIBusID != "":
		c.sysfsDir, c.dpdk = bus, passedThrough(bus)
	default:
		return errors.New(`specify either "device", "hwaddr", "kernelpath" or "pciBusID"`)
	}
	return nil
}

// noDevice is the error of a deviceID that this host does not have.
func (c *conf) noDevice(code int) error {
	return spec.Errorf(code, "runtime config DeviceID %s not found or unsupported", c.RuntimeConfig.DeviceID).
		WithDetails("it is neither a PCI nor an auxiliary device of this host")
}

// find returns the link of the host that the configuration selects; os.ErrNotExist: there is
// none.
func (c *conf) find(host *rtnl.Conn) (*rtnl.Link, error) {
	if c.HWAddr != "" && c.Device == "" {
		return c.findByMAC(host)
	}
	name := c.Device
	if c.sysfsDir != "" {
		name = linkOfDevice(c.sysfsDir)
	}
	if name == "" {
		return nil, fmt.Errorf("no network device in %s: %w", c.sysfsDir, os.ErrNotExist)
	}
	return host.Link(name)
}

// findByMAC prefers hardware to the bridges, bonds and VLANs on it, which have the same
// address.
func (c *conf) findByMAC(host *rtnl.Conn) (*rtnl.Link, error) {
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

// matches reports whether a link in a container can be the one that the configuration
// selected on the host: by its name there, which is its alias, or by an alternative name; by
// its address; or by its device, as the sysfs of the host does not list the links of other
// namespaces. Where an older kernel does not report the device, any hardware matches.
func (c *conf) matches(cont *rtnl.Conn, l *rtnl.Link) bool {
	switch {
	case c.Device != "":
		named, err := cont.Link(c.Device)
		return l.Alias == c.Device || err == nil && named.Index == l.Index && l.Name != c.Device
	case c.HWAddr != "":
		want, err := spec.ParseMAC(c.HWAddr)
		return err == nil && bytes.Equal(l.MAC, want)
	case c.sysfsDir == "" || c.dpdk || l.Kind != "":
		return false
	}
	return l.Device == "" || l.Device == path.Base(c.sysfsDir) || exists(c.sysfsDir+"/"+l.Device)
}

// validate checks the selectors, and looks a device up in sysfs; whether it has a link is
// for ADD to find out.
func (c *conf) validate() error {
	if c.Device != "" {
		if err := spec.CheckLinkName(c.Device); err != nil {
			return spec.KeyErrorf("device", `"device" %q: %s`, c.Device, err.Error()) // not wrapped: its code is that of CNI_IFNAME
		}
	}
	if c.HWAddr != "" {
		if _, err := spec.ParseMAC(c.HWAddr); err != nil {
			return spec.KeyErrorf("hwaddr", `"hwaddr": %w`, err)
		}
	}
	c.KernelPath = strings.TrimSuffix(c.KernelPath, "/")
	switch k := c.KernelPath; {
	case k != "" && (path.Clean(k) != k || !strings.HasPrefix(k, "/sys/devices/") || strings.Contains(k, "\x00")):
		return spec.KeyErrorf("kernelpath", `"kernelpath" %q must be an absolute path below /sys/devices/, without "." and ".."`, k)
	case c.PCIBusID != "" && !isPCI(strings.ToLower(c.PCIBusID)):
		return spec.KeyErrorf("pciBusID", `"pciBusID" %q is no PCI address such as 0000:3b:00.2`, c.PCIBusID)
	}
	if _, err := record.In(spec.Call{}, c.DataDir, dataDir); err != nil {
		return err
	}
	return c.resolve(HostSysfs)
}
