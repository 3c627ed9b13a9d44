package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/test/sandbox"
)

// guestTime limits how long the web server of a guest takes to answer: its processor is emulated.
const guestTime = 10 * time.Minute

const (
	guestNet      = "vms"
	guestPort     = 8680 // of the host; the second guest has the next one
	outsidePort   = 8000 // of the web server outside
	guestSubnet   = "10.89.0"
	userModeAddr  = "10.0.2.15/24" // what qemu gives its only guest
	userModeRoute = "10.0.2.2"
)

// guestList is a list as the users of Firecracker's SDK have it, with ports and limits.
var guestList = fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[
  {"type":"bridge","bridge":"vms0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true,
   "ipam":{"type":"host-local","subnet":%q}},
  {"type":"portmap","capabilities":{"portMappings":true}},
  {"type":"firewall"},
  {"type":"bandwidth","ingressRate":%d,"egressRate":%d},
  {"type":"tc-redirect-tap","tap_name":"tap0"}]}`, guestNet, guestSubnet+".0/24", ingressRate, egressRate)

// dropForwarded is a rule set of a host with a firewall: only what firewall accepts is forwarded.
const dropForwarded = `table ip filter {
  chain FORWARD { type filter hook forward priority filter; policy drop; }
}`

// A guest is a virtual machine in a namespace of `cni-exec run`.
type guest struct {
	h       *host
	n       int // the number at the end of its addresses
	console string
	ended   chan error
}

// guests runs virtual machines of qemu in namespaces of `cni-exec run`: behind the tap of tc-redirect-tap, and with
// qemu's own network.
func (h *host) guests() error {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		return fmt.Errorf("%w: apt-get install qemu-system-x86", err)
	}
	err := errors.Join(h.configure(""), os.WriteFile(filepath.Join(confDir, "20-vms.conflist"), []byte(guestList), 0o600))
	if err != nil {
		return err
	}
	stop, err := h.serveOutside()
	if err != nil {
		return err
	}
	defer stop()
	if err := nft(dropForwarded); err != nil {
		return err
	}
	one, two := &guest{h: h, n: 5}, &guest{h: h, n: 6}
	defer one.kill()
	defer two.kill()
	err = walk(
		stage{"two guests of qemu behind taps boot", func() error { return errors.Join(one.boot(), two.boot(), one.answers(), two.answers()) }},
		stage{"a port from the host and from outside, past a firewall", func() error {
			return errors.Join(h.publishedAt(one.port()), h.publishedAt(two.port()))
		}},
		stage{"a guest reaches outside by the host's address", func() error { return one.fetches(netip.AddrPortFrom(outsideAddr, outsidePort)) }},
		stage{"a guest reaches the other one", func() error { return one.fetches(netip.AddrPortFrom(two.addr(), 80)) }},
		stage{"limits in both directions", one.limited},
		stage{"cni-exec check; reload after the rules were flushed", func() error {
			if err := errors.Join(cniExec("check"), nft("flush ruleset")); err != nil {
				return err
			}
			return errors.Join(cniExec("reload"), cniExec("check"), h.publishedAt(one.port()))
		}},
		stage{"the guests power off; nothing is left", func() error { return errors.Join(one.off(), two.off(), eventually(h.empty)) }},
	)
	if err != nil {
		return errors.Join(err, one.log(), two.log())
	}
	user := &guest{h: h, n: 7}
	defer user.kill()
	err = walk(
		stage{"a guest with qemu's network of sockets, in a namespace of cni-exec run", func() error { return errors.Join(user.bootUser(), user.answers()) }},
		stage{"a port from the host and from outside, and the guest reaches outside", func() error {
			return errors.Join(h.publishedAt(user.port()), user.fetches(netip.AddrPortFrom(outsideAddr, outsidePort)))
		}},
		stage{"the guest powers off; nothing is left", func() error { return errors.Join(user.off(), eventually(h.empty)) }},
	)
	return errors.Join(err, user.logOf(err))
}

// nft changes the rule set of the host.
func nft(text string) error {
	_, _, err := sandbox.Call{Argv: []string{"nft", "-f", "-"}, Env: os.Environ(), Stdin: []byte(text)}.Run()
	return err
}

// serveOutside serves the page on the machine outside, to the host's address alone: others were not masqueraded.
func (h *host) serveOutside() (stop func(), err error) {
	var l net.Listener
	err = h.outside.NS.Do(func() error {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(outsideAddr, outsidePort).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			text := page
			if from := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); from != hostAddr {
				text = "not for " + from.String()
			}
			c.Read(make([]byte, 100)) // closing with unread data would reset the connection
			io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n"+text)
			c.Close()
		}
	}()
	return func() { l.Close() }, nil
}

func (g *guest) addr() netip.Addr { return netip.MustParseAddr(fmt.Sprintf("%s.%d", guestSubnet, g.n)) }
func (g *guest) mac() string      { return fmt.Sprintf("02:00:00:00:00:%02x", g.n) }
func (g *guest) port() uint16     { return uint16(guestPort + g.n) }

// boot starts a guest that has the MAC address and the address of the interface.
func (g *guest) boot() error {
	return g.run(g.addr().String()+"/24", guestSubnet+".1",
		[]string{"--net", guestNet, "--ip", g.addr().String(), "--mac", g.mac(), "-p", fmt.Sprintf("%d:80", g.port())},
		"-netdev", "tap,id=net0,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,netdev=net0,romfile=,mac="+g.mac())
}

// bootUser starts a guest whose packets qemu itself sends and receives, by sockets.
func (g *guest) bootUser() error {
	return g.run(userModeAddr, userModeRoute, []string{"--net", network, "-p", fmt.Sprintf("%d:8080", g.port())},
		"-netdev", "user,id=net0,hostfwd=tcp::8080-:80", "-device", "virtio-net-pci,netdev=net0,romfile=")
}

func (g *guest) run(addr, gateway string, attach []string, card ...string) error {
	file := func(name string) string { return filepath.Join(g.h.builtDir, "guest-"+name) }
	cmdline, err := os.ReadFile(file("cmdline"))
	if err != nil {
		return err
	}
	g.console = filepath.Join(work, fmt.Sprintf("console%d", g.n))
	args := append([]string{"run"}, attach...)
	args = append(args, "--", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "qemu64,+rdrand", "-m", "256", "-nodefaults",
		"-display", "none", "-no-reboot", "-serial", "file:"+g.console, "-kernel", file("vmlinuz"), "-initrd", file("initrd"),
		"-append", fmt.Sprintf("%s ADDR=%s GATEWAY=%s", cmdline, addr, gateway))
	cmd := exec.Command(filepath.Join(pluginDir, "cni-exec"), append(args, card...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	g.ended = make(chan error, 1)
	go func() { g.ended <- cmd.Wait(); close(g.ended) }()
	return nil
}

// answers waits for the web server of the guest.
func (g *guest) answers() error {
	end := time.After(guestTime)
	for {
		err := fetchOnce(nil, netip.AddrPortFrom(hostAddr, g.port()))
		if err == nil {
			return nil
		}
		select {
		case ended := <-g.ended:
			return fmt.Errorf("qemu has ended: %w", ended)
		case <-end:
			return err
		case <-time.After(time.Second):
		}
	}
}

// asks runs a program of the guest's web server, and returns its output.
func (g *guest) asks(program string) (string, error) {
	c, err := dial(nil, "tcp", netip.AddrPortFrom(hostAddr, g.port()))
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeLimit))
	if _, err := io.WriteString(c, "GET /cgi-bin/"+program+" HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	return string(text), err
}

// fetches reads a page from the guest.
func (g *guest) fetches(at netip.AddrPort) error {
	return eventually(func() error {
		text, err := g.asks("fetch?" + at.String())
		if err == nil && !strings.HasSuffix(text, page) {
			err = fmt.Errorf("the guest got %q from %s", text, at)
		}
		return err
	})
}

// limited looks for the buckets of both guests, and reads a big file, which takes as long as the rate says.
func (g *guest) limited() error {
	return errors.Join(g.h.buckets(), slow(netip.AddrPortFrom(g.addr(), 80)))
}

// off makes the guest end, and with it qemu and cni-exec.
func (g *guest) off() error {
	go g.asks("off") // it may not get an answer
	select {
	case err := <-g.ended:
		return err
	case <-time.After(timeLimit):
		return errors.New("the guest does not end")
	}
}

// kill ends a guest that runs after a failure.
func (g *guest) kill() {
	if g.ended == nil {
		return
	}
	select {
	case <-g.ended:
	default:
		g.asks("off")
	}
}

// log returns the end of the guest's console as an error.
func (g *guest) log() error {
	text, _ := os.ReadFile(g.console)
	return fmt.Errorf("console of guest %d: %s", g.n, text[max(0, len(text)-2000):])
}

func (g *guest) logOf(err error) error {
	if err == nil {
		return nil
	}
	return g.log()
}
