package hostdevice

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A Sysfs is the mount point of sysfs(5). Names from a configuration are checked before they become
// part of a path in it.
type Sysfs string

// HostSysfs is the sysfs of the host. Tests replace it.
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
// (VFIO, UIO), so that it has no link.
func passedThrough(dir string) bool {
	target, _ := os.Readlink(dir + "/driver")
	switch driver := path.Base(target); driver {
	case "vfio-pci", "uio_pci_generic", "igb_uio":
		return true
	default: // drivers of vendors, such as mlx5_vfio_pci
		return strings.HasSuffix(driver, "_vfio_pci")
	}
}

// linkOfDevice returns the name of the link of a device, or of the virtio device in it; empty: no
// link in this namespace.
func linkOfDevice(dir string) string {
	if name := firstIn(dir+"/net", ""); name != "" {
		return name
	}
	if name := firstIn(dir, "virtio"); name != "" {
		return firstIn(dir+"/"+name+"/net", "")
	}
	return ""
}

// firstIn returns the first name with the prefix in a directory; empty: none.
func firstIn(dir, prefix string) string {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			return e.Name()
		}
	}
	return ""
}

// pciOf returns the PCI address of a link of this namespace, which may be a virtio device; empty:
// none.
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

// resolve finds the directory of a device that is selected by its path or bus.
// runtimeConfig.deviceID, which a device plugin sets, replaces pciBusID.
func (p *plugin) resolve(s Sysfs) error {
	pci, aux := string(s)+"/bus/pci/devices/", string(s)+"/bus/auxiliary/devices/"
	id, bus := p.RuntimeConfig.DeviceID, pci+strings.ToLower(p.PCIBusID)
	if id != "" {
		p.PCIBusID, bus = id, aux+id
		if lower := strings.ToLower(id); isPCI(lower) {
			p.PCIBusID, bus = lower, pci+lower
		}
		if !isDeviceName(id) {
			return p.noDevice(spec.CodeConfig)
		}
		p.missing = !exists(bus)
	}
	switch {
	case p.Device != "" || p.HWAddr != "":
	case p.KernelPath != "":
		p.sysfsDir = string(s) + strings.TrimPrefix(p.KernelPath, "/sys")
	case p.PCIBusID != "":
		p.sysfsDir, p.dpdk = bus, passedThrough(bus)
	default:
		return errors.New(`specify either "device", "hwaddr", "kernelpath" or "pciBusID"`)
	}
	return nil
}

// noDevice returns the error for a deviceID that this host does not have.
func (p *plugin) noDevice(code int) error {
	return spec.Errorf(code, "runtime config DeviceID %s not found or unsupported", p.RuntimeConfig.DeviceID).
		WithDetails("it is neither a PCI nor an auxiliary device of this host")
}

// find returns the link of the host that the configuration selects. The error is os.ErrNotExist if
// there is none.
func (p *plugin) find(host *rtnl.Conn) (*rtnl.Link, error) {
	if p.HWAddr != "" && p.Device == "" {
		return p.findByMAC(host)
	}
	name := p.Device
	if p.sysfsDir != "" {
		name = linkOfDevice(p.sysfsDir)
	}
	if name == "" {
		return nil, fmt.Errorf("no network device in %s: %w", p.sysfsDir, os.ErrNotExist)
	}
	return host.Link(name)
}

// findByMAC prefers hardware to bridges, bonds and VLANs on it, which have the same address.
func (p *plugin) findByMAC(host *rtnl.Conn) (*rtnl.Link, error) {
	want, err := spec.ParseMAC(p.HWAddr)
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

// matches reports whether a link in a container can be the one that the configuration selected on
// the host. It compares the name on the host, which is the link's alias, or an alternative name;
// the address; or the device, since the host's sysfs does not list links of other namespaces. If an
// older kernel does not report the device, any hardware matches.
func (p *plugin) matches(cont *rtnl.Conn, l *rtnl.Link) bool {
	switch {
	case p.Device != "":
		named, err := cont.Link(p.Device)
		return l.Alias == p.Device || err == nil && named.Index == l.Index && l.Name != p.Device
	case p.HWAddr != "":
		want, err := spec.ParseMAC(p.HWAddr)
		return err == nil && bytes.Equal(l.MAC, want)
	case p.sysfsDir == "" || p.dpdk || l.Kind != "":
		return false
	}
	return l.Device == "" || l.Device == path.Base(p.sysfsDir) || exists(p.sysfsDir+"/"+l.Device)
}

// Validate checks the selectors, and finds a device in sysfs. ADD checks whether the device has a
// link.
func (p *plugin) Validate(*spec.Request) error {
	if p.Device != "" {
		if err := spec.CheckLinkName(p.Device); err != nil {
			return spec.KeyErrorf("device", `"device" %q: %s`, p.Device, err.Error()) // not wrapped: its code is that of CNI_IFNAME
		}
	}
	if p.HWAddr != "" {
		if _, err := spec.ParseMAC(p.HWAddr); err != nil {
			return spec.KeyErrorf("hwaddr", `"hwaddr": %w`, err)
		}
	}
	p.KernelPath = strings.TrimSuffix(p.KernelPath, "/")
	switch k := p.KernelPath; {
	case k != "" && (path.Clean(k) != k || !strings.HasPrefix(k, "/sys/devices/") || strings.Contains(k, "\x00")):
		return spec.KeyErrorf("kernelpath", `"kernelpath" %q must be an absolute path below /sys/devices/, without "." and ".."`, k)
	case p.PCIBusID != "" && !isPCI(strings.ToLower(p.PCIBusID)):
		return spec.KeyErrorf("pciBusID", `"pciBusID" %q is not a PCI address such as 0000:3b:00.2`, p.PCIBusID)
	}
	if _, err := record.ResolveDir(spec.Call{}, p.DataDir, dataDir); err != nil {
		return err
	}
	return p.resolve(HostSysfs)
}
