package hostdevice_test

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A card is a virtio network card on the machine's PCI bus, for tests. Only the initial network
// namespace has it in sysfs.
type card struct {
	*applettest.Host
	link   string
	pci    string // PCI address
	device string // directory in sysfs
}

// newCard uses the card in CNIBOX_NIC, which make test-vm sets in its guests.
func newCard(t *testing.T) *card {
	t.Helper()
	link := os.Getenv("CNIBOX_NIC")
	if link == "" {
		t.Skip("SKIPPED: no network card for tests: CNIBOX_NIC names none")
	}
	virtio, err := filepath.EvalSymlinks("/sys/class/net/" + link + "/device")
	if err != nil {
		t.Fatal(err)
	}
	host, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	dev := path.Dir(virtio)
	c := &card{&applettest.Host{T: t, NS: host, Dir: t.TempDir()}, link, path.Base(dev), dev}
	c.configure()
	return c
}

// configure sets the card up, with an MTU and an alias, which DEL must restore.
func (c *card) configure() {
	c.Helper()
	err := kerneltest.Dial(c.T, c.NS).SetLink(c.hostLink().Index, rtnl.LinkChange{MTU: new(1450), Alias: new("uplink"), Up: new(true)})
	if err != nil {
		c.Fatal(err)
	}
}

// hostLink returns the link, which must be on the host under its name.
func (c *card) hostLink() *rtnl.Link {
	c.Helper()
	l, err := kerneltest.Dial(c.T, c.NS).Link(c.link)
	if err != nil {
		c.Fatal(err)
	}
	return l
}

// bind binds the device to a driver.
func (c *card) bind(driver string) {
	c.Helper()
	err := os.WriteFile(c.device+"/driver_override", []byte(driver+"\n"), 0)
	if err == nil {
		err = os.WriteFile(c.device+"/driver/unbind", []byte(c.pci), 0)
	}
	if err == nil {
		err = os.WriteFile("/sys/bus/pci/drivers_probe", []byte(c.pci), 0)
	}
	if err != nil {
		c.Fatal(err)
	}
}

// Each selector finds a real card. ADD moves it and reports its PCI address, and DEL restores it.
// If the namespace ends first, the kernel returns the card asynchronously, and DEL waits for it.
// DEL of the reference leaves it down and under the name in the container.
func TestKernelHostDeviceHardware(t *testing.T) {
	c := newCard(t)
	for name, keys := range map[string]string{
		"device":     `"device":"` + c.link + `"`,
		"hwaddr":     `"hwaddr":"` + strings.ToUpper(c.hostLink().MAC.String()) + `"`,
		"pciBusID":   `"pciBusID":"` + strings.ToUpper(c.pci) + `"`,
		"kernelpath": `"kernelpath":"` + c.device + `"`,
		"virtio":     `"kernelpath":"` + c.device + "/" + filepath.Base(c.virtio()) + `"`,
		"deviceID":   `"pciBusID":"0000:ff:1f.7","runtimeConfig":{"deviceID":"` + c.pci + `"}`,
	} {
		conf := applettest.Conf("host-device", keys+","+applettest.DeviceKeys)
		t.Run(name, func(t *testing.T) {
			c.T = t
			p := c.Container("a")
			before := c.Snapshot(p)
			res := c.Must(spec.Add, "host-device", conf, p)
			l := kerneltest.Link(t, kerneltest.Dial(t, p.NS), "eth0")
			if l.Alias != c.link || !l.Up || l.MTU != 1450 || !strings.Contains(res, `"pciID": "`+c.pci+`"`) || !strings.Contains(res, l.MAC.String()) {
				t.Errorf("in the container: %+v\n%s", l, res)
			}
			c.Must(spec.Check, "host-device", applettest.Prev(conf, res), p)
			c.Must(spec.Status, "host-device", conf, applettest.Container{})
			c.Must(spec.Del, "host-device", conf, p)
			if after := c.Snapshot(p); after != before {
				t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
			}
		})
		for _, wait := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/namespace ends/%t", name, wait), func(t *testing.T) {
				c.T = t
				witness := applettest.Container{NS: kerneltest.NS(t)}
				before := c.Snapshot(witness)
				p := c.Container("a")
				c.Must(spec.Add, "host-device", conf, p, "CNI_IFNAME=net1")
				c.End(p)
				if wait {
					c.waitReturned()
				}
				c.Must(spec.Del, "host-device", conf, p, "CNI_IFNAME=net1")
				if left, _ := filepath.Glob(c.Dir + "/records/*"); len(left) != 0 && !wait { // not returned before the timeout of DEL
					c.waitReturned()
					c.Must(spec.Del, "host-device", conf, p, "CNI_IFNAME=net1")
				}
				if after := c.Snapshot(witness); after != before {
					t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
				}
			})
		}
	}
}

// virtio returns the directory of the card's virtio device.
func (c *card) virtio() string {
	c.Helper()
	found, err := filepath.Glob(c.device + "/virtio*")
	if err != nil || len(found) != 1 {
		c.Fatalf("virtio devices %q, %v", found, err)
	}
	return found[0]
}

// waitReturned waits until the kernel has moved the card to the host, under any name.
func (c *card) waitReturned() {
	c.Helper()
	kerneltest.Eventually(c.T, "the card on the host", func() error {
		if back, _ := filepath.Glob(c.virtio() + "/net/*"); len(back) == 0 {
			return errors.New("the card did not come back")
		}
		return nil
	})
}

// A card that is bound to a userspace driver has no link: ADD returns addresses only, and DEL
// leaves the card bound.
func TestKernelHostDeviceHardwarePassedThrough(t *testing.T) {
	c := newCard(t)
	if _, err := os.Stat("/sys/bus/pci/drivers/uio_pci_generic"); err != nil {
		t.Skip("SKIPPED: this kernel lacks CONFIG_UIO_PCI_GENERIC")
	}
	p := c.Container("a")
	before := c.Snapshot(p)
	c.bind("uio_pci_generic")
	t.Cleanup(func() {
		c.bind("virtio-pci")
		c.waitReturned()
		c.configure()
		if after := c.Snapshot(p); after != before {
			t.Errorf("bound again:\n%s", kerneltest.Diff(before, after))
		}
	})
	for _, conf := range []string{
		applettest.Conf("host-device", `"pciBusID":"`+c.pci+`",`+applettest.DeviceKeys),
		applettest.Conf("host-device", `"runtimeConfig":{"deviceID":"`+c.pci+`"},`+applettest.DeviceKeys),
	} {
		c.Must(spec.Status, "host-device", conf, applettest.Container{})
		res := c.Must(spec.Add, "host-device", conf, p)
		if !strings.Contains(res, `"pciID": "`+c.pci+`"`) || !strings.Contains(res, `"10.1.0.`) || len(kerneltest.Links(t, p.NS)) != 1 {
			t.Errorf("got %s", res)
		}
		c.Must(spec.Check, "host-device", applettest.Prev(conf, res), p)
		c.Must(spec.Del, "host-device", conf, p)
	}
	if driver, err := os.Readlink(c.device + "/driver"); err != nil || path.Base(driver) != "uio_pci_generic" {
		t.Errorf("the card is with %q, %v", driver, err)
	}
}
