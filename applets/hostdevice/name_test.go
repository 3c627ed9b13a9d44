package hostdevice_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// addNamesake adds a link under a name whose former link is in a container.
func addNamesake(h *applettest.Host, name string, addr net.HardwareAddr) {
	h.Helper()
	c := kerneltest.Dial(h.T, h.NS)
	if err := c.AddLink(rtnl.LinkSpec{Name: name, MAC: addr, Peer: &rtnl.LinkSpec{Name: "wire2-" + name}}); err != nil {
		h.Fatal(err)
	}
	setLink(h.T, h.NS, name, rtnl.LinkChange{Alias: new("second")})
}

// containerWithLinks returns a container in which the indexes of the host's links are in use, so
// that the kernel changes the index of a moved link.
func containerWithLinks(h *applettest.Host, id string) applettest.Container {
	h.Helper()
	p := h.Container(id)
	c := kerneltest.Dial(h.T, p.NS)
	for _, name := range []string{"k", "l", "m", "n"} {
		if err := c.AddLink(rtnl.LinkSpec{Name: name, Peer: &rtnl.LinkSpec{Name: name + "1"}}); err != nil {
			h.Fatal(err)
		}
	}
	return p
}

// setLink changes a link of a namespace.
func setLink(t *testing.T, ns *netns.NS, name string, ch rtnl.LinkChange) {
	t.Helper()
	c := kerneltest.Dial(t, ns)
	if err := c.SetLink(kerneltest.Link(t, c, name).Index, ch); err != nil {
		t.Fatal(err)
	}
}

// A new link may take the name of one that is in a container, and be moved as well. DEL of each
// attachment restores its own link, whatever happened to it in the container.
func TestKernelHostDeviceNameReused(t *testing.T) {
	other, _ := net.ParseMAC("02:00:00:00:00:11")
	changed, _ := net.ParseMAC("02:00:00:00:00:99")
	conf := applettest.DeviceConf("nic0")
	for _, oneAddress := range []bool{false, true} {
		for _, pods := range []string{"aa", "ab"} {
			for _, late := range []bool{false, true} {
				t.Run(fmt.Sprintf("pods %s, last first %t, one address %t", pods, late, oneAddress), func(t *testing.T) {
					h := applettest.NewHost(t)
					p := containerWithLinks(h, pods[:1])
					q := p
					first, addr := h.NIC("nic0").MAC, other
					if oneAddress {
						addr = first
					}
					h.Must(spec.Add, "host-device", conf, p)
					if pods == "ab" {
						q = containerWithLinks(h, "b")
					}
					addNamesake(h, "nic0", addr)
					h.Must(spec.Add, "host-device", conf, q, "CNI_IFNAME=eth1")
					setLink(t, q.NS, "eth1", rtnl.LinkChange{Up: new(false)})
					if !oneAddress {
						setLink(t, p.NS, "eth0", rtnl.LinkChange{MAC: changed})
						setLink(t, q.NS, "eth1", rtnl.LinkChange{MAC: changed})
					}
					setLink(t, q.NS, "eth1", rtnl.LinkChange{Name: new("x")})
					dels := []func(){
						func() { delRestores(h, p, "eth0", "wire-", "uplink of nic0", first) },
						func() { delRestores(h, q, "eth1", "wire2-", "second", addr) },
					}
					if late {
						dels[0], dels[1] = dels[1], dels[0]
					}
					dels[0]()
					setLink(t, h.NS, "nic0", rtnl.LinkChange{Up: new(false)})
					setLink(t, h.NS, "nic0", rtnl.LinkChange{Name: new("kept")})
					dels[1]()
					if got := kerneltest.Snapshot(t, p.NS) + kerneltest.Snapshot(t, q.NS); strings.Contains(got, "nic0") {
						t.Errorf("left: %s", got)
					}
					if left, _ := filepath.Glob(h.Dir + "/records/*"); len(left) != 0 {
						t.Errorf("records %v", left)
					}
				})
			}
		}
	}
}

// delRestores calls DEL, and requires that nic0 on the host is the peer of a link again, as before
// ADD.
func delRestores(h *applettest.Host, p applettest.Container, ifName, wire, alias string, addr net.HardwareAddr) {
	h.Helper()
	h.Must(spec.Del, "host-device", applettest.DeviceConf("nic0"), p, "CNI_IFNAME="+ifName)
	c := kerneltest.Dial(h.T, h.NS)
	if l := kerneltest.Link(h.T, c, "nic0"); l.Parent != kerneltest.Link(h.T, c, wire).Index || l.Alias != alias || l.MAC.String() != addr.String() {
		h.Errorf("DEL of %s brought %+v, want that on %s, %q with %s", ifName, l, wire, alias, addr)
	}
}

// If its name is in use, the device is on the host under another name. ADD does not confuse the
// two, and keeps the other link unchanged.
func TestKernelHostDeviceAddWhileNameTaken(t *testing.T) {
	h := applettest.NewHost(t)
	p, q := h.Container("a"), h.Container("b")
	h.NIC("nic0")
	before := h.Snapshot(p)
	conf := applettest.DeviceConf("nic0")
	h.Must(spec.Add, "host-device", conf, p)
	changed, _ := net.ParseMAC("02:00:00:00:00:99")
	setLink(t, p.NS, "eth0", rtnl.LinkChange{MAC: changed})
	c := kerneltest.Dial(t, h.NS)
	kerneltest.Need(t, "CONFIG_BRIDGE", func() error { return c.AddLink(rtnl.LinkSpec{Name: "nic0", Kind: rtnl.Bridge{}}) })
	h.Must(spec.Del, "host-device", conf, p)
	waits := h.Snapshot(p)
	for _, tt := range []struct {
		p    applettest.Container
		code int
		want string
	}{{p, spec.CodeBusy, "waits on the host for its name"}, {q, spec.CodeConfig, "failed to move nic0 to " + q.Path + ": a link of this kind"}} {
		if code, out := h.Call(spec.Add, "host-device", conf, tt.p); code != tt.code || !strings.Contains(out, tt.want) {
			t.Errorf("got %d %s, want %d with %q", code, out, tt.code, tt.want)
		}
		if after := h.Snapshot(p); after != waits {
			t.Fatalf("left behind:\n%s", kerneltest.Diff(waits, after))
		}
	}
	if err := c.DelLink("nic0"); err != nil {
		t.Fatal(err)
	}
	h.Must(spec.Add, "host-device", conf, q) // finds the device under its other name
	if l := kerneltest.Link(t, kerneltest.Dial(t, q.NS), "eth0"); l.Alias != "nic0" {
		t.Errorf("in the container: %+v", l)
	}
	h.Must(spec.Del, "host-device", conf, p)
	h.Must(spec.Del, "host-device", conf, q)
	if after := h.Snapshot(p); after != before {
		t.Errorf("left:\n%s", kerneltest.Diff(before, after))
	}
}

// One of two concurrent ADDs of a device succeeds and has the record.
func TestKernelHostDeviceConcurrentAdds(t *testing.T) {
	h := applettest.NewHost(t)
	pods := []applettest.Container{h.Container("a"), h.Container("b")}
	h.NIC("nic0")
	before := h.Snapshot(pods[0])
	conf := applettest.Conf("host-device", `"device":"nic0","dataDir":"$DIR/records"`)
	for range 30 {
		codes, outs := [2]int{}, [2]string{}
		var both sync.WaitGroup
		for i, p := range pods {
			both.Go(func() { codes[i], outs[i] = h.Call(spec.Add, "host-device", conf, p) })
		}
		both.Wait()
		if codes[0]+codes[1] != spec.CodeConfig || !strings.Contains(outs[0]+outs[1], "host device") {
			t.Fatalf("got %v %s", codes, outs)
		}
		for _, p := range pods {
			h.Must(spec.Del, "host-device", conf, p)
		}
		if after := h.Snapshot(pods[0]); after != before {
			t.Fatalf("left:\n%s", kerneltest.Diff(before, after))
		}
	}
}

// DEL without a record returns a link that the reference moved if all keys match, but never a link
// of another plugin, even with an alias.
func TestKernelHostDeviceDelWithoutRecord(t *testing.T) {
	const addr = "02:00:00:00:00:0a"
	for name, tt := range map[string]struct {
		host, alias, keys string
		taken             bool
	}{
		"its name":                  {"nic0", "nic0", `"device":"nic0"`, true},
		"its name there too":        {"eth0", "eth0", `"device":"eth0"`, true},
		"its address":               {"nic0", "nic0", `"hwaddr":"` + addr + `"`, true},
		"another name":              {"nic0", "uplink", `"device":"nic9"`, false},
		"its name in the container": {"nic0", "uplink", `"device":"eth0"`, false},
		"another address":           {"nic0", "uplink", `"hwaddr":"02:00:00:00:00:99"`, false},
		"no hardware":               {"nic0", "uplink", `"kernelpath":"/sys/devices/pci0000:00/0000:00:03.0"`, false},
		"no hardware, PCI":          {"nic0", "uplink", `"pciBusID":"0000:00:03.0"`, false},
		"invalid configuration":     {"nic0", "uplink", `"pciBusID":"x"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("a")
			c := kerneltest.Dial(t, h.NS)
			hw, _ := net.ParseMAC(addr)
			if err := c.AddLink(rtnl.LinkSpec{Name: tt.host, MAC: hw, Peer: &rtnl.LinkSpec{Name: "wire"}}); err != nil {
				t.Fatal(err)
			}
			setLink(t, h.NS, tt.host, rtnl.LinkChange{NS: p.NS, Name: new("eth0"), Alias: &tt.alias})
			before := h.Snapshot(p)
			h.Must(spec.Del, "host-device", applettest.Conf("host-device", tt.keys+","+applettest.DeviceKeys), p)
			if tt.taken {
				if l := kerneltest.Link(t, c, tt.host); l.Alias != "" {
					t.Errorf("alias %q", l.Alias)
				}
			} else if after := h.Snapshot(p); after != before {
				t.Errorf("DEL of another's:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// DEL leaves a link that another attachment has on record, in the container or returned by the
// kernel.
func TestKernelHostDeviceDelOfOtherNetwork(t *testing.T) {
	h := applettest.NewHost(t)
	p := containerWithLinks(h, "a")
	made := h.NIC("nic0").MAC
	conf := applettest.DeviceConf("nic0")
	other := strings.Replace(conf, `"demo"`, `"other"`, 1)
	h.Must(spec.Add, "host-device", conf, p)
	changed, _ := net.ParseMAC("02:00:00:00:00:99")
	for _, addr := range []net.HardwareAddr{changed, made} {
		setLink(t, p.NS, "eth0", rtnl.LinkChange{MAC: addr})
		before := h.Snapshot(p)
		h.Must(spec.Del, "host-device", other, p)
		if after := h.Snapshot(p); after != before {
			t.Errorf("in the container:\n%s", kerneltest.Diff(before, after))
		}
	}
	returnToHost(h, p, "eth0")
	before := h.Snapshot(p)
	h.Must(spec.Del, "host-device", other, p, "CNI_NETNS=")
	if after := h.Snapshot(p); after != before {
		t.Errorf("on the host:\n%s", kerneltest.Diff(before, after))
	}
}

// An alternative name of up to the maximal length selects a link. DEL restores the primary name.
func TestKernelHostDeviceAlternativeName(t *testing.T) {
	for name, alt := range map[string]string{"short": "uplink", "16 bytes": "sixteen-bytes-xx", "longest": strings.Repeat("x", 127)} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("a")
			h.NIC("nic0")
			kerneltest.AddAltName(t, h.NS, "nic0", alt)
			before := h.Snapshot(p)
			conf := applettest.DeviceConf(alt)
			h.Must(spec.Add, "host-device", conf, p)
			if l := kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0"); l.Alias != "nic0" {
				t.Errorf("in the container: %+v", l)
			}
			h.Must(spec.Del, "host-device", conf, p)
			if after := h.Snapshot(p); after != before {
				t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
			}
			setLink(t, h.NS, "nic0", rtnl.LinkChange{NS: p.NS, Name: new("eth0"), Alias: new("nic0")})
			if _, err := kerneltest.Dial(t, p.NS).Link(alt); err != nil {
				t.Skipf("SKIPPED: this kernel leaves alternative names behind: %v", err)
			}
			h.Must(spec.Del, "host-device", conf, p)
			kerneltest.Link(t, kerneltest.Dial(t, h.NS), "nic0")
		})
	}
	t.Run("is CNI_IFNAME", func(t *testing.T) {
		h := applettest.NewHost(t)
		p := h.Container("a")
		h.NIC("nic0")
		kerneltest.AddAltName(t, h.NS, "nic0", "uplink")
		before := h.Snapshot(p)
		code, out := h.Call(spec.Add, "host-device", applettest.DeviceConf("nic0"), p, "CNI_IFNAME=uplink")
		if code == 0 {
			t.Skip("SKIPPED: this kernel takes an alternative name of the link for free")
		}
		if code != spec.CodeConfig || !strings.Contains(out, "alternative name") || !strings.Contains(out, "ip link property del") {
			t.Errorf("got %d %s", code, out)
		}
		if after := h.Snapshot(p); after != before {
			t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
		}
	})
}
