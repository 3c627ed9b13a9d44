//go:build !no_host_device

package applets_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/applets/hostdevice"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

const deviceKeys = `"dataDir":"$DIR/records","ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}`

func init() {
	rollbackConfs["host-device-alone"] = deviceConfOf("nic0")
	rollbackHosts["host-device"] = func(n *node) { n.nic("nic0") }
}

// deviceOf is a configuration whose keys are those given.
func deviceOf(keys string) string {
	return `{"cniVersion":"1.1.0","name":"demo","type":"host-device",` + keys + `}`
}

// nic makes a link that stands for hardware: one end of a pair whose other end, up, is
// the wire.
func (n *node) nic(name string) *rtnl.Link {
	n.t.Helper()
	c := kerneltest.Dial(n.t, n.host)
	addr, _ := net.ParseMAC("02:00:00:00:00:0" + name[len(name)-1:])
	err := c.AddLink(rtnl.LinkSpec{Name: name, MAC: addr, MTU: 1450, Up: true,
		Peer: &rtnl.LinkSpec{Name: "wire-" + name}})
	if err == nil {
		err = c.Do(rtnl.ChangeLink(linkOf(n.t, c, "wire-"+name).Index, rtnl.LinkChange{Up: new(true)}),
			rtnl.ChangeLink(linkOf(n.t, c, name).Index, rtnl.LinkChange{Alias: new("uplink of " + name)}))
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return linkOf(n.t, c, name)
}

func deviceConfOf(device string) string { return deviceOf(`"device":"` + device + `",` + deviceKeys) }

// The link comes back as it was, whatever happened to it in the container; the reference
// leaves it down, and forgets alias, MTU and address.
func TestKernelHostDevice(t *testing.T) {
	for name, keys := range map[string]string{
		"by name": `"device":"nic0",`, "by address": `"hwaddr":"02:00:00:00:00:00",`,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("a")
			n.nic("nic0")
			if name == "by address" { // ParseMAC refuses all zeros
				c := kerneltest.Dial(t, n.host)
				addr, _ := net.ParseMAC("02:00:00:00:00:0a")
				if err := c.SetLink(linkOf(t, c, "nic0").Index, rtnl.LinkChange{MAC: addr}); err != nil {
					t.Fatal(err)
				}
				keys = `"hwaddr":"02:00:00:00:00:0A",`
			}
			conf := deviceOf(keys + deviceKeys)
			before := n.state(p)
			res := n.must(spec.Add, "host-device", conf, p)
			c := kerneltest.Dial(t, p.ns)
			l := linkOf(t, c, "eth0")
			if l.Alias != "nic0" || !l.Up || l.MTU != 1450 || !strings.Contains(res, l.MAC.String()) || !strings.Contains(res, "10.1.0.2/24") {
				t.Errorf("in the container: %+v\n%s", l, res)
			}
			n.must(spec.Check, "host-device", prev(conf, res), p)
			old := strings.Replace(conf, `"1.1.0"`, `"0.4.0"`, 1)
			if got := n.must(spec.Get, "host-device", old, p); !strings.Contains(got, l.MAC.String()) {
				t.Errorf("GET: %s", got)
			}
			other, _ := net.ParseMAC("02:00:00:00:00:99")
			if err := c.SetLink(l.Index, rtnl.LinkChange{MTU: new(1400), MAC: other, Up: new(false)}); err != nil {
				t.Fatal(err)
			}
			if err := c.SetLink(l.Index, rtnl.LinkChange{Name: new("renamed0")}); err != nil {
				t.Fatal(err)
			}
			n.must(spec.Del, "host-device", conf, p)
			if after := n.state(p); after != before {
				t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
			}
			n.must(spec.Del, "host-device", conf, p)
			n.must(spec.Del, "host-device", conf, p, "CNI_NETNS=")
		})
	}
}

// comesBack moves the link of a pod to the host under another name, down and with its
// alias, as the kernel does with hardware whose namespace ends.
func (n *node) comesBack(p pod, name string) {
	n.t.Helper()
	c := kerneltest.Dial(n.t, p.ns)
	l := linkOf(n.t, c, "eth0")
	if err := c.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		n.t.Fatal(err)
	}
	if err := c.SetLink(l.Index, rtnl.LinkChange{Name: &name}); err != nil {
		n.t.Fatal(err)
	}
	if err := c.SetLink(l.Index, rtnl.LinkChange{NS: n.host, Name: &name}); err != nil {
		n.t.Fatal(err)
	}
}

// A link that the kernel gave back under another name gets its own, at DEL, at GC, and at
// the ADD of another container. The reference's DEL fails, or returns without releasing
// the address.
func TestKernelHostDeviceNamespaceGone(t *testing.T) {
	conf := deviceConfOf("nic0")
	for name, do := range map[string]func(n *node){
		"DEL without namespace": func(n *node) { n.must(spec.Del, "host-device", conf, pod{id: "a"}) },
		"DEL with a path that is gone": func(n *node) {
			n.must(spec.Del, "host-device", conf, pod{id: "a"}, "CNI_NETNS=/nowhere/netns")
		},
		"DEL with a file in its place": func(n *node) {
			n.must(spec.Del, "host-device", conf, pod{id: "a"}, "CNI_NETNS=/etc/hostname")
		},
		"GC": func(n *node) {
			n.must(spec.GC, "host-device", strings.Replace(conf, `"ipam"`, `"cni.dev/valid-attachments":[],"ipam"`, 1), pod{})
		},
	} {
		for _, as := range []string{"eth0", "dev17"} {
			t.Run(name+"/"+as, func(t *testing.T) {
				n := newNode(t)
				p := n.pod("a")
				n.nic("nic0")
				before := n.state(p)
				n.must(spec.Add, "host-device", conf, p)
				n.comesBack(p, as)
				do(n)
				if after := n.state(p); after != before {
					t.Errorf("left:\n%s", kerneltest.Diff(before, after))
				}
			})
		}
	}
	t.Run("ADD of another", func(t *testing.T) {
		n := newNode(t)
		p := n.pod("a")
		n.nic("nic0")
		before := n.state(p)
		n.must(spec.Add, "host-device", conf, p, "CNI_NETNS="+p.path)
		n.comesBack(p, "dev17")
		file := n.dir + "/records/" + spec.Attachment{Network: "demo", ContainerID: "a", IfName: "eth0"}.Key() + ".json"
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		gone := strings.Replace(string(b), p.path, "/nowhere/netns", 1) // the test's own namespace does not end
		if err := os.WriteFile(file, []byte(gone), 0o600); err != nil {
			t.Fatal(err)
		}
		q := n.pod("b")
		n.must(spec.Add, "host-device", conf, q)
		n.must(spec.Del, "host-device", conf, p) // late: it must not take the link from the other
		linkOf(t, kerneltest.Dial(t, q.ns), "eth0")
		n.must(spec.Del, "host-device", conf, q)
		if after := n.state(p); after != before {
			t.Errorf("left:\n%s", kerneltest.Diff(before, after))
		}
	})
}

// A name that another link has meanwhile stays with that: the device comes back under
// another, with the attributes and alias by which GC finds it when the name is free. The
// reference's DEL fails for ever.
func TestKernelHostDeviceNameTaken(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	n.nic("nic0")
	before := n.state(p)
	conf := deviceConfOf("nic0")
	n.must(spec.Add, "host-device", conf, p)
	c := kerneltest.Dial(t, n.host)
	if err := c.AddLink(rtnl.LinkSpec{Name: "nic0", Peer: &rtnl.LinkSpec{Name: "x"}}); err != nil {
		t.Fatal(err)
	}
	n.must(spec.Del, "host-device", conf, p)
	back := linkOf(t, c, "dev")
	if back.Alias != "nic0" || len(links(t, p.ns)) != 1 {
		t.Errorf("on the host: %+v", back)
	}
	if leases, _ := filepath.Glob(n.dir + "/demo/10.*"); len(leases) != 0 {
		t.Errorf("the lease is kept: %v", leases)
	}
	n.must(spec.Del, "host-device", conf, p) // still taken
	if err := c.DelLink("nic0"); err != nil {
		t.Fatal(err)
	}
	n.must(spec.GC, "host-device", strings.Replace(conf, `"ipam"`, `"cni.dev/valid-attachments":[],"ipam"`, 1), pod{})
	if after := n.state(p); after != before {
		t.Errorf("left:\n%s", kerneltest.Diff(before, after))
	}
}

// A name that another device has, since the kernel moved that to the host under it, is
// free once that device has its own: then the next DEL gives the name back.
func TestKernelHostDeviceNameTakenByAnother(t *testing.T) {
	n := newNode(t)
	a, b := n.pod("a"), n.pod("b")
	n.nic("eth0")
	n.nic("nic1")
	before := n.state(a)
	n.must(spec.Add, "host-device", deviceConfOf("eth0"), a, "CNI_IFNAME=net1")
	n.must(spec.Add, "host-device", deviceConfOf("nic1"), b)
	n.comesBack(b, "eth0")
	n.must(spec.Del, "host-device", deviceConfOf("eth0"), a, "CNI_IFNAME=net1")
	c := kerneltest.Dial(t, n.host)
	if l := linkOf(t, c, "eth0"); l.Alias != "nic1" {
		t.Errorf("eth0: %+v", l)
	}
	n.must(spec.Del, "host-device", deviceConfOf("nic1"), b, "CNI_NETNS=")
	n.must(spec.Del, "host-device", deviceConfOf("eth0"), a, "CNI_IFNAME=net1")
	if after := n.state(a); after != before {
		t.Errorf("left:\n%s", kerneltest.Diff(before, after))
	}
}

// An attachment that the reference has made is known by the alias alone; a link of the
// host with an alias of its administrator's is not one.
func TestKernelHostDeviceOfReference(t *testing.T) {
	conf := deviceConfOf("nic0")
	moved := func(n *node, p pod) {
		l := n.nic("nic0")
		if err := kerneltest.Dial(n.t, n.host).SetLink(l.Index, rtnl.LinkChange{NS: p.ns, Name: new("eth0"), Alias: new("nic0"), Up: new(false)}); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, netns := range []string{"", "CNI_NETNS="} {
		n := newNode(t)
		p := n.pod("a")
		moved(n, p)
		if netns != "" {
			n.comesBack(p, "eth0")
		}
		n.must(spec.Del, "host-device", conf, p, strings.Fields(netns)...)
		if l := linkOf(t, kerneltest.Dial(t, n.host), "nic0"); l.Alias != "" {
			t.Errorf("alias %q", l.Alias)
		}
	}
	n := newNode(t)
	p := n.pod("a")
	c := kerneltest.Dial(t, n.host)
	l := n.nic("eth0")
	if err := c.SetLink(l.Index, rtnl.LinkChange{Alias: new("uplink")}); err != nil {
		t.Fatal(err)
	}
	before := n.state(p)
	for _, keys := range []string{`"device":"eth0",`, `"hwaddr":"` + l.MAC.String() + `",`} {
		n.must(spec.Del, "host-device", deviceOf(keys+deviceKeys), p)
		n.must(spec.Del, "host-device", deviceOf(keys+deviceKeys), p, "CNI_NETNS=")
	}
	if after := n.state(p); after != before {
		t.Errorf("DEL of a link with another's alias changed\n%s", kerneltest.Diff(before, after))
	}
	// up, it is in use, whatever its alias says
	if err := c.SetLink(l.Index, rtnl.LinkChange{Alias: new("nic0")}); err != nil {
		t.Fatal(err)
	}
	before = n.state(p)
	n.must(spec.Del, "host-device", conf, p, "CNI_NETNS=")
	if after := n.state(p); after != before {
		t.Errorf("DEL of nothing changed\n%s", kerneltest.Diff(before, after))
	}
}

// Others are on the segment of the link, so an IPv6 address is looked for there first [N8].
func TestKernelHostDeviceDuplicate(t *testing.T) {
	n := newNode(t)
	p := n.careful("a")
	n.nic("nic0")
	c := kerneltest.Dial(t, n.host)
	if err := c.AddAddr(linkOf(t, c, "wire-nic0").Index, rtnl.Addr{Prefix: prefix("fd00:1::2/64"), NoDAD: true}); err != nil {
		t.Fatal(err)
	}
	kerneltest.Solicited(t, n.host, netip.MustParseAddr("fd00:1::2"), 1)
	before := n.state(p)
	conf := deviceOf(`"device":"nic0","dataDir":"$DIR/records","ipam":{"type":"host-local","dataDir":"$DIR","subnet":"fd00:1::/64"}`)
	if code, out := n.call(t.Context(), spec.Add, "host-device", conf, p); code == 0 || !strings.Contains(out, "duplicate") {
		t.Errorf("got %d %s", code, out)
	}
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// What cannot be moved is refused, and stays where and as it is.
func TestKernelHostDeviceRefuses(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	n.nic("nic0")
	if err := kerneltest.Dial(t, p.ns).AddLink(rtnl.LinkSpec{Name: "taken", Peer: &rtnl.LinkSpec{Name: "nic0"}}); err != nil {
		t.Fatal(err)
	}
	before := n.state(p)
	for name, tt := range map[string]struct {
		conf, ifname, want string
		code               int
	}{
		"not there":     {deviceConfOf("nic9"), "eth0", "failed to find host device", spec.CodeConfig},
		"no such MAC":   {deviceOf(`"hwaddr":"02:00:00:00:99:99",` + deviceKeys), "eth0", "failed to find host device", spec.CodeConfig},
		"loopback":      {deviceConfOf("lo"), "eth0", "loopback", spec.CodeConfig},
		"name taken":    {deviceConfOf("nic0"), "taken", "already exists", spec.CodeBusy},
		"no addresses":  {strings.Replace(deviceConfOf("nic0"), "10.1.0.0/24", "10.1.0.0/31", 1), "eth0", "10.1.0.0/31", spec.CodeConfig},
		"ID not there":  {deviceOf(`"runtimeConfig":{"deviceID":"0000:ff:1f.7"},` + deviceKeys), "eth0", "not found or unsupported", spec.CodeConfig},
		"flag is a key": {deviceOf(`"DPDKMode":true,` + deviceKeys), "eth0", "specify either", spec.CodeConfig},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := n.call(t.Context(), spec.Add, "host-device", tt.conf, p, "CNI_IFNAME="+tt.ifname)
			if code != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("got %d %s, want %d with %q", code, out, tt.code, tt.want)
			}
			if after := n.state(p); after != before {
				t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
	// the container has a link of the name that ours has on the host: it passes by that
	n.must(spec.Add, "host-device", deviceConfOf("nic0"), p)
	n.must(spec.Del, "host-device", deviceConfOf("nic0"), p)
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// A device bound to VFIO has addresses and no link; DEL works when it is unplugged.
func TestKernelHostDevicePassedThrough(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	sys := t.TempDir()
	dev := sys + "/bus/pci/devices/0000:5e:00.1"
	if err := errors.Join(os.MkdirAll(dev, 0o755), os.Symlink("../drivers/vfio-pci", dev+"/driver")); err != nil {
		t.Fatal(err)
	}
	was := hostdevice.HostSysfs
	hostdevice.HostSysfs = hostdevice.Sysfs(sys)
	t.Cleanup(func() { hostdevice.HostSysfs = was })
	conf := deviceOf(`"runtimeConfig":{"deviceID":"0000:5e:00.1"},"dns":{"nameservers":["10.0.0.53"]},` + deviceKeys)
	before := n.state(p)
	n.must(spec.Status, "host-device", conf, pod{})
	res := n.must(spec.Add, "host-device", conf, p)
	for _, want := range []string{`"pciID": "0000:5e:00.1"`, `"address": "10.1.0.2/24"`, `"interface": 0`, "10.0.0.53"} {
		if !strings.Contains(res, want) {
			t.Errorf("no %s in %s", want, res)
		}
	}
	if strings.Contains(res, `"mac"`) || len(links(t, p.ns)) != 1 {
		t.Errorf("there is a link: %s", res)
	}
	n.must(spec.Check, "host-device", prev(conf, res), p)
	os.RemoveAll(sys)
	n.must(spec.Del, "host-device", conf, p)
	n.must(spec.Del, "host-device", conf, p, "CNI_NETNS=")
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
	if code, out := n.call(t.Context(), spec.Status, "host-device", conf, pod{}); code == 0 {
		t.Errorf("STATUS without the device: %s", out)
	}
}
