package hostdevice

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// fakeSysfs makes the plugin read a directory instead of /sys until the test ends.
func fakeSysfs(t *testing.T, dir string) {
	was := HostSysfs
	HostSysfs = Sysfs(dir)
	t.Cleanup(func() { HostSysfs = was })
}

// makeSysfs creates directories, and symbolic links from path to target.
func makeSysfs(t *testing.T, dirs []string, links map[string]string) Sysfs {
	t.Helper()
	root := t.TempDir()
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range links {
		if err := os.Symlink(to, filepath.Join(root, from)); err != nil {
			t.Fatal(err)
		}
	}
	return Sysfs(root)
}

// testSysfs has a network card, a virtio card, a card bound to VFIO, and an auxiliary device.
func testSysfs(t *testing.T) Sysfs {
	return makeSysfs(t, []string{
		"bus/pci/devices/0000:3b:00.2/net/enp59s0f2", "bus/pci/devices/0000:00:03.0/virtio0/net/ens3",
		"bus/pci/devices/0000:5e:00.1", "bus/pci/devices/0000:5e:00.2", "bus/pci/devices/0000:5e:00.3/net",
		"bus/auxiliary/devices/mlx5_core.sf.4/net/enp8s0f0s88", "class/net",
		"devices/pci0000:00/0000:00:03.0/virtio0/net/ens3", "devices/virtual/net/br0",
	}, map[string]string{
		"bus/pci/devices/0000:5e:00.1/driver": "../../../../bus/pci/drivers/vfio-pci",
		"bus/pci/devices/0000:5e:00.2/driver": "../../../../bus/pci/drivers/mlx5_vfio_pci",
		"bus/pci/devices/0000:3b:00.2/driver": "../../../../bus/pci/drivers/mlx5_core",
		"class/net/ens3":                      "../../devices/pci0000:00/0000:00:03.0/virtio0/net/ens3",
		"class/net/enp59s0f2":                 "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2/net/enp59s0f2",
		"class/net/br0":                       "../../devices/virtual/net/br0",
		"class/net/enp8s0f0s88":               "../../devices/pci0000:00/0000:08:00.0/mlx5_core.sf.4/net/enp8s0f0s88",
	})
}

// Selectors that are looked up in sysfs. A device in another namespace has no link there.
func TestHostDeviceSysfs(t *testing.T) {
	for name, tt := range map[string]struct {
		conf plugin
		want string // the link, or "dpdk"; "": an error
	}{
		"PCI":                         {plugin{PCIBusID: "0000:3b:00.2"}, "enp59s0f2"},
		"capital letters":             {plugin{PCIBusID: "0000:3B:00.2"}, "enp59s0f2"},
		"virtio":                      {plugin{PCIBusID: "0000:00:03.0"}, "ens3"},
		"kernelpath":                  {plugin{KernelPath: "/sys/devices/pci0000:00/0000:00:03.0/virtio0"}, "ens3"},
		"kernelpath of the PCI card":  {plugin{KernelPath: "/sys/devices/pci0000:00/0000:00:03.0"}, "ens3"},
		"kernelpath with a slash":     {plugin{KernelPath: "/sys/devices/pci0000:00/0000:00:03.0/"}, "ens3"},
		"deviceID before pciBusID":    {withID(plugin{PCIBusID: "0000:00:03.0"}, "0000:3b:00.2"), "enp59s0f2"},
		"auxiliary":                   {withID(plugin{PCIBusID: "0000:00:03.0"}, "mlx5_core.sf.4"), "enp8s0f0s88"},
		"VFIO":                        {plugin{PCIBusID: "0000:5e:00.1"}, "dpdk"},
		"VFIO of a vendor, by ID":     {withID(plugin{}, "0000:5e:00.2"), "dpdk"},
		"in another namespace":        {plugin{PCIBusID: "0000:5e:00.3"}, ""},
		"not there":                   {plugin{PCIBusID: "0000:ff:00.0"}, ""},
		"deviceID not there":          {withID(plugin{PCIBusID: "0000:3b:00.2"}, "0000:ff:00.0"), ""},
		"deviceID that is a path":     {withID(plugin{}, "../devices/mlx5_core.sf.4"), ""},
		"deviceID that is the parent": {withID(plugin{}, ".."), ""},
	} {
		t.Run(name, func(t *testing.T) {
			fakeSysfs(t, string(testSysfs(t)))
			c, got := tt.conf, ""
			err := c.Validate(nil)
			switch {
			case err != nil:
			case c.dpdk:
				got = "dpdk"
			default:
				got = linkOfDevice(c.sysfsDir)
			}
			if got != tt.want {
				t.Errorf("got %q (%v), want %q", got, err, tt.want)
			}
		})
	}
}

func withID(c plugin, id string) plugin {
	c.RuntimeConfig.DeviceID = id
	return c
}

// The host's sysfs has no link for hardware that the reference moved. It is identified by its parent
// device; a virtual link never matches.
func TestHostDeviceMatches(t *testing.T) {
	card := plugin{PCIBusID: "0000:00:03.0"}
	for name, tt := range map[string]struct {
		conf plugin
		link rtnl.Link
		want bool
	}{
		"PCI":               {card, rtnl.Link{Device: "0000:00:03.0"}, true},
		"virtio":            {card, rtnl.Link{Device: "virtio0"}, true},
		"kernelpath":        {plugin{KernelPath: "/sys/devices/pci0000:00/0000:00:03.0/virtio0"}, rtnl.Link{Device: "virtio0"}, true},
		"auxiliary":         {withID(plugin{}, "mlx5_core.sf.4"), rtnl.Link{Device: "mlx5_core.sf.4"}, true},
		"older kernel":      {card, rtnl.Link{}, true},
		"another":           {card, rtnl.Link{Device: "0000:3b:00.2"}, false},
		"no hardware":       {card, rtnl.Link{Kind: "veth"}, false},
		"VFIO":              {plugin{PCIBusID: "0000:5e:00.1"}, rtnl.Link{}, false},
		"does not validate": {plugin{}, rtnl.Link{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			fakeSysfs(t, string(testSysfs(t)))
			c := tt.conf
			if err := c.Validate(nil); (err != nil) != (name == "does not validate") {
				t.Fatal(err)
			}
			if got := c.matches(nil, &tt.link); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// Returned hardware is recognized by its permanent MAC address, even if its address was changed.
func TestHostDeviceReturned(t *testing.T) {
	made, other := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
	rec := deviceRecord{&record.Record[device]{Data: device{Name: "nic0", MAC: made.String(), PermMAC: made.String()}}}
	rec.IfName = "eth0"
	for name, tt := range map[string]struct {
		link rtnl.Link
		want bool
	}{
		"its address":       {rtnl.Link{Name: "dev7", Alias: "nic0", MAC: made}, true},
		"made with it":      {rtnl.Link{Name: "eth0", Alias: "nic0", MAC: other, PermMAC: made}, true},
		"made with another": {rtnl.Link{Name: "eth0", Alias: "nic0", MAC: other, PermMAC: other}, false},
		"no permanent one":  {rtnl.Link{Name: "eth0", Alias: "nic0", MAC: other}, false},
		"of another kind":   {rtnl.Link{Name: "eth0", Alias: "nic0", MAC: made, Kind: "vlan"}, false},
		"renamed by udev":   {rtnl.Link{Name: "enp3s0", Alias: "nic0", MAC: made}, true},
		"under its name":    {rtnl.Link{Name: "nic0", MAC: made}, false},
	} {
		if got := rec.returnedByKernel(&tt.link); got != tt.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// Network cards and virtio devices have a PCI address; other links do not.
func TestHostDevicePCIOf(t *testing.T) {
	s := testSysfs(t)
	for link, want := range map[string]string{"ens3": "0000:00:03.0", "enp59s0f2": "0000:3b:00.2", "br0": "", "enp8s0f0s88": "", "nowhere": ""} {
		if got := s.pciOf(link); got != want {
			t.Errorf("%s: got %q, want %q", link, got, want)
		}
	}
}

// A key cannot refer to a path outside of sysfs, and the internal flag of the reference is not a
// key here.
func TestHostDeviceRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ conf, want string }{
		"nothing":               {`{"ipam":{}}`, `specify either "device"`},
		"the flag alone":        {`{"DPDKMode":true}`, `specify either "device"`},
		"device":                {`{"device":"../x"}`, `"device"`},
		"device too long":       {`{"device":"` + strings.Repeat("x", 128) + `"}`, "too long"},
		"hwaddr":                {`{"hwaddr":"02:00"}`, `"hwaddr"`},
		"kernelpath":            {`{"kernelpath":"/etc/devices"}`, "below /sys/devices/"},
		"kernelpath with dots":  {`{"kernelpath":"/sys/devices/../../etc"}`, "below /sys/devices/"},
		"kernelpath itself":     {`{"kernelpath":"/sys/devices/"}`, "below /sys/devices/"},
		"kernelpath not rooted": {`{"kernelpath":"sys/devices/x"}`, "below /sys/devices/"},
		"pciBusID":              {`{"pciBusID":"3b:00.2"}`, "not a PCI address"},
		"pciBusID as a path":    {`{"pciBusID":"../../0000:3b:00.2"}`, "not a PCI address"},
		"pciBusID function":     {`{"pciBusID":"0000:3b:00.8"}`, "not a PCI address"},
		"pciBusID digits":       {`{"pciBusID":"0000:3g:00.2"}`, "not a PCI address"},
		"dataDir":               {`{"device":"eth1","dataDir":"x"}`, `"dataDir"`},
	} {
		t.Run(name, func(t *testing.T) {
			var c plugin
			err := spectest.Request(t, spec.Add, tt.conf, "").Decode(&c)
			if err != nil {
				t.Fatal(err)
			}
			if err = c.Validate(nil); err != nil {
				err = spec.Errorf(spec.CodeConfig, "%w", err)
			}
			spectest.WantError(t, err, tt.want, spec.CodeConfig)
		})
	}
}
