package hostdevice_test

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cnibox/applets/applettest"
	"cnibox/applets/hostdevice"
	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A card is a network card of the machine that tests may have, on the PCI bus and with a
// virtio device in it. Only the first namespace of all sees it in sysfs.
type card struct {
	*applettest.Host
	link   string
	pci    string // its address
	device string // its directory in sysfs
}

// newCard takes the card that CNIBOX_NIC names, as make test-vm does in its guests.
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
	c.adorn()
	return c
}

// adorn sets the card up, with an MTU and an alias that DEL must restore.
func (c *card) adorn() {
	c.Helper()
	err := kerneltest.Dial(c.T, c.NS).SetLink(c.onHost().Index, rtnl.LinkChange{MTU: new(1450), Alias: new("uplink"), Up: new(true)})
	if err != nil {
		c.Fatal(err)
	}
}

// onHost requires the card on the host, under its name.
func (c *card) onHost() *rtnl.Link {
	c.Helper()
	l, err := kerneltest.Dial(c.T, c.NS).Link(c.link)
	if err != nil {
		c.Fatal(err)
	}
	return l
}

// bind binds the device in a slot to a driver.
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

// Each selector finds a real card, which is moved, reported with its PCI address, and
// comes back as it was. When the namespace ends first, the kernel gives hardware back in
// its own time: DEL waits for it; DEL of the reference leaves it down and under the name that it had
// in the container.
func TestKernelHostDeviceHardware(t *testing.T) {
	c := newCard(t)
	for name, keys := range map[string]string{
		"device":     `"device":"` + c.link + `"`,
		"hwaddr":     `"hwaddr":"` + strings.ToUpper(c.onHost().MAC.String()) + `"`,
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
					c.returns()
				}
				start := time.Now()
				c.Must(spec.Del, "host-device", conf, p, "CNI_IFNAME=net1")
				if left, _ := filepath.Glob(c.Dir + "/records/*"); len(left) != 0 && !wait { // later than DEL waits
					if took := time.Since(start); took < hostdevice.ReturnTimeout {
						t.Errorf("DEL waited only %s", took)
					}
					c.returns()
					c.Must(spec.Del, "host-device", conf, p, "CNI_IFNAME=net1")
				}
				if after := c.Snapshot(witness); after != before {
					t.Errorf("after DEL:\n%s", kerneltest.Diff(before, after))
				}
			})
		}
	}
}

// virtio is the directory of the virtio device in the card.
func (c *card) virtio() string {
	c.Helper()
	found, err := filepath.Glob(c.device + "/virtio*")
	if err != nil || len(found) != 1 {
		c.Fatalf("virtio devices %q, %v", found, err)
	}
	return found[0]
}

// returns waits until the kernel has moved the card to the host, under any name.
func (c *card) returns() {
	c.Helper()
	kerneltest.Eventually(c.T, "the card on the host", func() error {
		if back, _ := filepath.Glob(c.virtio() + "/net/*"); len(back) == 0 {
			return errors.New("the card did not come back")
		}
		return nil
	})
}

// A card that is bound to a driver for programs has no link: the container gets addresses
// alone, and DEL leaves the card where it is.
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
		c.returns()
		c.adorn()
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
