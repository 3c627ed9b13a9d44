package hostdevice_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/hostdevice"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// DEL restores the former state of the link, whatever happened to it in the container. The
// reference leaves it down, without its alias, MTU and address.
func TestKernelHostDevice(t *testing.T) {
	for name, keys := range map[string]string{
		"by name": `"device":"nic0",`, "by address": `"hwaddr":"02:00:00:00:00:00",`,
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("a")
			h.NIC("nic0")
			if name == "by address" { // ParseMAC refuses an all-zero address
				c := kerneltest.Dial(t, h.NS)
				addr, _ := net.ParseMAC("02:00:00:00:00:0a")
				if err := c.SetLink(kerneltest.Link(t, c, "nic0").Index, rtnl.LinkChange{MAC: addr}); err != nil {
					t.Fatal(err)
				}
				keys = `"hwaddr":"02:00:00:00:00:0A",`
			}
			conf := applettest.Conf("host-device", keys+applettest.DeviceKeys)
			before := h.Snapshot(p)
			res := h.Must(spec.Add, "host-device", conf, p)
			c := kerneltest.Dial(t, p.NS)
			l := kerneltest.Link(t, c, "eth0")
			if l.Alias != "nic0" || !l.Up || l.MTU != 1450 || !strings.Contains(res, l.MAC.String()) || !strings.Contains(res, "10.1.0.2/24") {
				t.Errorf("in the container: %+v\n%s", l, res)
			}
			h.Must(spec.Check, "host-device", applettest.Prev(conf, res), p)
			old := strings.Replace(conf, `"1.1.0"`, `"0.4.0"`, 1)
			if got := h.Must(spec.Get, "host-device", old, p); !strings.Contains(got, l.MAC.String()) {
				t.Errorf("GET: %s", got)
			}
			other, _ := net.ParseMAC("02:00:00:00:00:99")
			if err := c.SetLink(l.Index, rtnl.LinkChange{MTU: new(1400), MAC: other, Up: new(false)}); err != nil {
				t.Fatal(err)
			}
			if err := c.SetLink(l.Index, rtnl.LinkChange{Name: new("renamed0")}); err != nil {
				t.Fatal(err)
			}
			h.Must(spec.Del, "host-device", conf, p)
			if after := h.Snapshot(p); after != before {
				t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
			}
			h.Must(spec.Del, "host-device", conf, p)
			h.Must(spec.Del, "host-device", conf, p, "CNI_NETNS=")
		})
	}
}

// returnToHost moves the link of a container to the host under another name, down and with its
// alias, as the kernel does with hardware when the namespace ends.
func returnToHost(h *applettest.Host, p applettest.Container, name string) {
	h.Helper()
	c := kerneltest.Dial(h.T, p.NS)
	l := kerneltest.Link(h.T, c, "eth0")
	if err := c.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		h.Fatal(err)
	}
	if err := c.SetLink(l.Index, rtnl.LinkChange{Name: &name}); err != nil {
		h.Fatal(err)
	}
	if err := c.SetLink(l.Index, rtnl.LinkChange{NS: h.NS, Name: &name}); err != nil {
		h.Fatal(err)
	}
}

// DEL, GC, and ADD of another container restore the name of a link that the kernel returned under
// another one. DEL of the reference fails, or succeeds without releasing the address.
func TestKernelHostDeviceNamespaceGone(t *testing.T) {
	conf := applettest.DeviceConf("nic0")
	for name, do := range map[string]func(h *applettest.Host){
		"DEL without namespace": func(h *applettest.Host) { h.Must(spec.Del, "host-device", conf, applettest.Container{ID: "a"}) },
		"DEL with a path that is gone": func(h *applettest.Host) {
			h.Must(spec.Del, "host-device", conf, applettest.Container{ID: "a"}, "CNI_NETNS=/nowhere/netns")
		},
		"DEL with a file in its place": func(h *applettest.Host) {
			h.Must(spec.Del, "host-device", conf, applettest.Container{ID: "a"}, "CNI_NETNS=/etc/hostname")
		},
		"GC": func(h *applettest.Host) {
			h.Must(spec.GC, "host-device", strings.Replace(conf, `"ipam"`, `"cni.dev/valid-attachments":[],"ipam"`, 1), applettest.Container{})
		},
	} {
		for _, as := range []string{"eth0", "dev17"} {
			t.Run(name+"/"+as, func(t *testing.T) {
				h := applettest.NewHost(t)
				p := h.Container("a")
				h.NIC("nic0")
				before := h.Snapshot(p)
				h.Must(spec.Add, "host-device", conf, p)
				returnToHost(h, p, as)
				do(h)
				if after := h.Snapshot(p); after != before {
					t.Errorf("left:\n%s", kerneltest.Diff(before, after))
				}
			})
		}
	}
	for _, as := range []string{"dev17", "nic0"} {
		t.Run("ADD of another/"+as, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("a")
			h.NIC("nic0")
			before := h.Snapshot(p)
			h.Must(spec.Add, "host-device", conf, p, "CNI_NETNS="+p.Path)
			returnToHost(h, p, as)
			file := h.Dir + "/records/" + spec.Attachment{Network: "demo", ContainerID: "a", IfName: "eth0"}.Key() + ".json"
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			gone := strings.Replace(string(b), p.Path, "/nowhere/netns", 1) // since the test keeps the namespace
			if err := os.WriteFile(file, []byte(gone), 0o600); err != nil {
				t.Fatal(err)
			}
			q := h.Container("b")
			h.Must(spec.Add, "host-device", conf, q)
			h.Must(spec.Del, "host-device", conf, p) // a late DEL must not take the link from b
			kerneltest.Link(t, kerneltest.Dial(t, q.NS), "eth0")
			h.Must(spec.Del, "host-device", conf, q)
			if after := h.Snapshot(p); after != before {
				t.Errorf("left:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// If another link has taken the name, that one keeps it. The device returns under another name,
// with the attributes and the alias by which GC finds it when the name is free. DEL of the
// reference fails.
func TestKernelHostDeviceNameInUse(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	h.NIC("nic0")
	before := h.Snapshot(p)
	conf := applettest.DeviceConf("nic0")
	h.Must(spec.Add, "host-device", conf, p)
	c := kerneltest.Dial(t, h.NS)
	if err := c.AddLink(rtnl.LinkSpec{Name: "nic0", Peer: &rtnl.LinkSpec{Name: "x"}}); err != nil {
		t.Fatal(err)
	}
	h.Must(spec.Del, "host-device", conf, p)
	back := kerneltest.Link(t, c, "dev")
	if back.Alias != "nic0" || len(kerneltest.Links(t, p.NS)) != 1 {
		t.Errorf("on the host: %+v", back)
	}
	if leases, _ := filepath.Glob(h.Dir + "/demo/10.*"); len(leases) != 0 {
		t.Errorf("the lease is kept: %v", leases)
	}
	h.Must(spec.Del, "host-device", conf, p) // the name is still in use
	if err := c.DelLink("nic0"); err != nil {
		t.Fatal(err)
	}
	h.Must(spec.GC, "host-device", strings.Replace(conf, `"ipam"`, `"cni.dev/valid-attachments":[],"ipam"`, 1), applettest.Container{})
	if after := h.Snapshot(p); after != before {
		t.Errorf("left:\n%s", kerneltest.Diff(before, after))
	}
}

// If the kernel has returned another device under the name, DEL of that device frees the name, and
// the next DEL restores it.
func TestKernelHostDeviceNameOfReturnedDevice(t *testing.T) {
	h := applettest.NewHost(t)
	a, b := h.Container("a"), h.Container("b")
	h.NIC("eth0")
	h.NIC("nic1")
	before := h.Snapshot(a)
	h.Must(spec.Add, "host-device", applettest.DeviceConf("eth0"), a, "CNI_IFNAME=net1")
	h.Must(spec.Add, "host-device", applettest.DeviceConf("nic1"), b)
	returnToHost(h, b, "eth0")
	h.Must(spec.Del, "host-device", applettest.DeviceConf("eth0"), a, "CNI_IFNAME=net1")
	c := kerneltest.Dial(t, h.NS)
	if l := kerneltest.Link(t, c, "eth0"); l.Alias != "nic1" {
		t.Errorf("eth0: %+v", l)
	}
	h.Must(spec.Del, "host-device", applettest.DeviceConf("nic1"), b, "CNI_NETNS=")
	h.Must(spec.Del, "host-device", applettest.DeviceConf("eth0"), a, "CNI_IFNAME=net1")
	if after := h.Snapshot(a); after != before {
		t.Errorf("left:\n%s", kerneltest.Diff(before, after))
	}
}

// An attachment that the reference has made is known by the alias alone; a link of the
// host with an alias of its administrator's is not one.
func TestKernelHostDeviceOfReference(t *testing.T) {
	conf := applettest.DeviceConf("nic0")
	moved := func(h *applettest.Host, p applettest.Container) {
		l := h.NIC("nic0")
		if err := kerneltest.Dial(h.T, h.NS).SetLink(l.Index, rtnl.LinkChange{NS: p.NS, Name: new("eth0"), Alias: new("nic0"), Up: new(false)}); err != nil {
			h.Fatal(err)
		}
	}
	for _, netns := range []string{"", "CNI_NETNS="} {
		h := applettest.NewHost(t)
		p := h.Container("a")
		moved(h, p)
		if netns != "" {
			returnToHost(h, p, "eth0")
		}
		h.Must(spec.Del, "host-device", conf, p, strings.Fields(netns)...)
		if l := kerneltest.Link(t, kerneltest.Dial(t, h.NS), "nic0"); l.Alias != "" {
			t.Errorf("alias %q", l.Alias)
		}
	}
	h := applettest.NewHost(t)
	p := h.Container("a")
	c := kerneltest.Dial(t, h.NS)
	l := h.NIC("eth0")
	if err := c.SetLink(l.Index, rtnl.LinkChange{Alias: new("uplink")}); err != nil {
		t.Fatal(err)
	}
	before := h.Snapshot(p)
	for _, keys := range []string{`"device":"eth0",`, `"hwaddr":"` + l.MAC.String() + `",`} {
		h.Must(spec.Del, "host-device", applettest.Conf("host-device", keys+applettest.DeviceKeys), p)
		h.Must(spec.Del, "host-device", applettest.Conf("host-device", keys+applettest.DeviceKeys), p, "CNI_NETNS=")
	}
	if after := h.Snapshot(p); after != before {
		t.Errorf("DEL of a link with another's alias changed\n%s", kerneltest.Diff(before, after))
	}
	// up, it is in use, whatever its alias says
	if err := c.SetLink(l.Index, rtnl.LinkChange{Alias: new("nic0")}); err != nil {
		t.Fatal(err)
	}
	before = h.Snapshot(p)
	h.Must(spec.Del, "host-device", conf, p, "CNI_NETNS=")
	if after := h.Snapshot(p); after != before {
		t.Errorf("DEL of nothing changed\n%s", kerneltest.Diff(before, after))
	}
}

// An IPv6 address that another machine on the segment has is an error, and nothing is left.
func TestKernelHostDeviceDuplicateAddress(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	applettest.SetDAD(t, p.NS, "1", "3") // an answer may be late
	h.NIC("nic0")
	c := kerneltest.Dial(t, h.NS)
	if err := c.AddAddr(kerneltest.Link(t, c, "wire-nic0").Index, rtnl.Addr{Prefix: netip.MustParsePrefix("fd00:1::2/64"), NoDAD: true}); err != nil {
		t.Fatal(err)
	}
	kerneltest.Solicited(t, h.NS, netip.MustParseAddr("fd00:1::2"), 1)
	before := h.Snapshot(p)
	conf := applettest.Conf("host-device", `"device":"nic0","dataDir":"$DIR/records","ipam":{"type":"host-local","dataDir":"$DIR","subnet":"fd00:1::/64"}`)
	if code, out := h.Call(spec.Add, "host-device", conf, p); code == 0 || !strings.Contains(out, "duplicate") {
		t.Errorf("got %d %s", code, out)
	}
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// A link that cannot be moved is refused, and is not changed.
func TestKernelHostDeviceInvalidConf(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	h.NIC("nic0")
	kerneltest.AddLink(t, p.NS, rtnl.LinkSpec{Name: "taken", Peer: &rtnl.LinkSpec{Name: "nic0"}})
	before := h.Snapshot(p)
	for name, tt := range map[string]struct {
		conf, ifname, want string
		code               int
	}{
		"not there":     {applettest.DeviceConf("nic9"), "eth0", "nic9", spec.CodeConfig},
		"no such MAC":   {applettest.Conf("host-device", `"hwaddr":"02:00:00:00:99:99",`+applettest.DeviceKeys), "eth0", "02:00:00:00:99:99", spec.CodeConfig},
		"loopback":      {applettest.DeviceConf("lo"), "eth0", "loopback", spec.CodeConfig},
		"name taken":    {applettest.DeviceConf("nic0"), "taken", "already exists", spec.CodeBusy},
		"no addresses":  {strings.Replace(applettest.DeviceConf("nic0"), "10.1.0.0/24", "10.1.0.0/31", 1), "eth0", "10.1.0.0/31", spec.CodeConfig},
		"ID not there":  {applettest.Conf("host-device", `"runtimeConfig":{"deviceID":"0000:ff:1f.7"},`+applettest.DeviceKeys), "eth0", "0000:ff:1f.7", spec.CodeConfig},
		"flag is a key": {applettest.Conf("host-device", `"DPDKMode":true,`+applettest.DeviceKeys), "eth0", "kernelpath", spec.CodeConfig},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := h.Call(spec.Add, "host-device", tt.conf, p, "CNI_IFNAME="+tt.ifname)
			if code != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("got %d %s, want %d with %q", code, out, tt.code, tt.want)
			}
			if after := h.Snapshot(p); after != before {
				t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
	// the container has a link of the name that ours has on the host: it passes by that
	h.Must(spec.Add, "host-device", applettest.DeviceConf("nic0"), p)
	h.Must(spec.Del, "host-device", applettest.DeviceConf("nic0"), p)
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// A device bound to VFIO has addresses and no link; DEL works when it is unplugged.
func TestKernelHostDevicePassedThrough(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	sys := t.TempDir()
	dev := sys + "/bus/pci/devices/0000:5e:00.1"
	if err := errors.Join(os.MkdirAll(dev, 0o755), os.Symlink("../drivers/vfio-pci", dev+"/driver")); err != nil {
		t.Fatal(err)
	}
	was := hostdevice.HostSysfs
	hostdevice.HostSysfs = hostdevice.Sysfs(sys)
	t.Cleanup(func() { hostdevice.HostSysfs = was })
	conf := applettest.Conf("host-device", `"runtimeConfig":{"deviceID":"0000:5e:00.1"},"dns":{"nameservers":["10.0.0.53"]},`+applettest.DeviceKeys)
	before := h.Snapshot(p)
	h.Must(spec.Status, "host-device", conf, applettest.Container{})
	res := h.Must(spec.Add, "host-device", conf, p)
	for _, want := range []string{`"pciID": "0000:5e:00.1"`, `"address": "10.1.0.2/24"`, `"interface": 0`, "10.0.0.53"} {
		if !strings.Contains(res, want) {
			t.Errorf("no %s in %s", want, res)
		}
	}
	if strings.Contains(res, `"mac"`) || len(kerneltest.Links(t, p.NS)) != 1 {
		t.Errorf("there is a link: %s", res)
	}
	h.Must(spec.Check, "host-device", applettest.Prev(conf, res), p)
	os.RemoveAll(sys)
	h.Must(spec.Del, "host-device", conf, p)
	h.Must(spec.Del, "host-device", conf, p, "CNI_NETNS=")
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
	if code, out := h.Call(spec.Status, "host-device", conf, applettest.Container{}); code == 0 {
		t.Errorf("STATUS without the device: %s", out)
	}
}
