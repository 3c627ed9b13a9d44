package upgrade

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/test/dhcptest"
	"github.com/cnibox/cnibox/test/product"
)

// upgradeFrom is the path of an earlier revision's binary, which `make test-upgrade` builds.
var upgradeFrom = os.Getenv("CNIBOX_UPGRADE_FROM")

// processTime is how long a process may take before it counts as stuck.
var processTime = kerneltest.Timeout(time.Minute)

func TestMain(m *testing.M) { product.Main(m, nil) }

// upgradePart is the variable with the part of the test that a process runs on its own host;
// upgradeDisk is the directory that is mounted at /var/lib there, across boots.
const (
	upgradePart = "CNIBOX_UPGRADE_PART"
	upgradeDisk = "CNIBOX_UPGRADE_DISK"
)

// TestKernelUpgrade attaches containers with the binary of an earlier revision and installs this
// one: all of them keep working, and leave nothing at their end. Each part runs in a process with
// its own network namespace as the host, its own /run and /var/lib, and its own PID namespace: gc
// keeps attachments whose leased address is in any namespace of the host, and the parts have the
// same addresses.
func TestKernelUpgrade(t *testing.T) {
	if upgradeFrom == "" {
		t.Skip("SKIPPED: the upgrade from an earlier revision: CNIBOX_UPGRADE_FROM names no binary of one; make test-upgrade builds it")
	}
	if part := os.Getenv(upgradePart); part != "" {
		upgradeParts[part](t)
		return
	}
	kerneltest.NS(t) // skips without the privilege
	for _, part := range []string{"beside", "beside, FORWARD drops", "new ones end first", "all end at once", "collected", "leases of DHCP"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			boot(t, part, t.TempDir(), 'a')
		})
	}
	t.Run("within the second boot", func(t *testing.T) {
		t.Parallel()
		disk := t.TempDir()
		boot(t, "first boot", disk, 'a')
		boot(t, "second boot", disk, 'b')
		boot(t, "next boot", disk, 'c')
	})
}

var upgradeParts map[string]func(*testing.T)

func init() {
	upgradeParts = map[string]func(*testing.T){
		"beside":                func(t *testing.T) { upgradeBeside(newNode(t, false)) },
		"beside, FORWARD drops": func(t *testing.T) { upgradeBeside(newNode(t, true)) },
		"new ones end first":    upgradeNewEndFirst,
		"all end at once":       upgradeEnd,
		"collected":             upgradeCollected,
		"leases of DHCP":        upgradeDHCP,
		"first boot":            upgradeFirstBoot,
		"second boot":           upgradeSecondBoot,
		"next boot":             upgradeNextBoot,
	}
}

// boot runs a part in its own process, with a boot ID made of a letter.
func boot(t *testing.T, part, disk string, letter byte) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	id := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(id, bytes.ReplaceAll([]byte("xxxxxxxx-xxxx-4xxx-8xxx-xxxxxxxxxxxx\n"), []byte("x"), []byte{letter}), 0o444); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*processTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.v", "-test.run", "^TestKernelUpgrade$")
	cmd.Env = append(os.Environ(), upgradePart+"="+part, upgradeDisk+"="+disk, "CNIBOX_UPGRADE_BOOT="+id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	skipped := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if _, why, ok := strings.Cut(strings.TrimSpace(line), "SKIPPED: "); ok && !skipped[why] {
			skipped[why] = true
			t.Log("SKIPPED: " + why)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", part, err, out)
	}
}

// attachAll attaches one container to each network.
func (n *node) attachAll(id string, port int) (pods []*pod) {
	n.Helper()
	for i, net := range n.networks {
		if net.plugins[0]["type"] == "host-device" && id != "old" {
			continue // there is only one device
		}
		pods = append(pods, n.attach(net, id, port+i))
	}
	return pods
}

// checkAlive checks what must hold of containers at any time.
func (n *node) checkAlive(when string, pods []*pod) {
	n.Helper()
	n.each(when+": CHECK", pods, n.check)
	n.each(when+": traffic", pods, n.flows(false))
	n.each(when+": traffic", pods, echoStreams)
}

// attachOld attaches containers by the earlier binary, and upgrades.
func (n *node) attachOld() []*pod {
	n.Helper()
	old := n.attachAll("old", 8000)
	n.checkAlive("before the upgrade", old)
	n.each("before the upgrade: traffic", old, n.flows(true))
	n.upgrade()
	n.checkAlive("after the upgrade", old)
	return old
}

// upgradeBeside attaches new containers beside the old ones, and detaches the old ones first.
func upgradeBeside(n *node) {
	old := n.attachOld()
	fresh := n.attachAll("new", 9000)
	n.each("traffic of a new one", fresh, n.flows(true))
	n.checkAlive("beside new ones", append(old, fresh...))
	n.refused(old)
	n.checkAlive("after refused ADDs", append(old, fresh...))
	n.gcAll(append(old, fresh...))
	n.checkAlive("after GC", append(old, fresh...))
	for _, p := range old {
		p.hangUp()
	}
	n.each("DEL", old, n.del)
	n.checkAlive("without the old ones", fresh)
	n.each("after DEL", old, n.checkUnpublished)
	n.each("DEL again", old, n.del)
	n.checkAlive("after the second DEL of the old ones", fresh)
	n.each("DEL", fresh, n.del)
	n.checkClean()
}

// refused checks that ADDs that conflict with existing attachments are refused.
func (n *node) refused(old []*pod) {
	n.Helper()
	for _, p := range old {
		if p.exec {
			if _, err := n.cniExec("add", p); err == nil {
				n.Errorf("a second cni-exec add of %s succeeds", p.ID)
			}
		}
		if p.port == 0 {
			continue
		}
		second := n.pod(p.network, "second", p.port)
		if err := n.add(second); err == nil || !strings.Contains(err.Error(), p.ID) {
			n.Errorf("port %d of %s is not refused with its owner's name: %v", p.port, p.ID, err)
		}
		n.each("DEL after a refused ADD", []*pod{second}, n.del)
		n.end(second)
	}
}

// upgradeNewEndFirst detaches the new containers first.
func upgradeNewEndFirst(t *testing.T) {
	n := newNode(t, false)
	old := n.attachOld()
	fresh := n.attachAll("new", 9000)
	n.each("DEL", fresh, n.del)
	n.checkAlive("without the new ones", old)
	for _, p := range old {
		p.hangUp()
	}
	n.each("DEL", old, n.del)
	n.each("after DEL", old, n.checkUnpublished)
	n.checkClean()
}

// upgradeEnd detaches the old containers right after the upgrade, every other one without its
// namespace.
func upgradeEnd(t *testing.T) {
	n := newNode(t, false)
	old := n.attachAll("old", 8000)
	n.upgrade()
	for i, p := range old {
		if i%2 == 1 {
			n.end(p)
		}
	}
	n.each("DEL", old, n.del)
	n.each("after DEL", old, n.checkUnpublished)
	n.checkClean()
}

// upgradeCollected ends containers without DEL: GC, or a DEL of a runtime without a namespace,
// deletes their state, and nothing of the others.
func upgradeCollected(t *testing.T) {
	n := newNode(t, false)
	old, gone := n.attachAll("old", 8000), []*pod(nil)
	for i, net := range n.networks {
		if net.plugins[0]["type"] != "host-device" {
			gone = append(gone, n.attach(net, "gone", 8500+i))
		}
	}
	n.each("before the upgrade: traffic", old, n.flows(true))
	n.upgrade()
	for _, p := range gone {
		n.end(p)
	}
	n.gcAll(old)
	n.checkAlive("after GC", old)
	for _, p := range gone {
		if !p.exec && p.version < "1.1.0" {
			n.each("DEL", []*pod{p}, n.del) // its version has no GC
		}
	}
	n.each("after GC", gone, n.checkUnpublished)
	var next []*pod
	for _, p := range gone {
		next = append(next, n.attach(p.network, "next", p.port))
	}
	n.checkAlive("beside those that have the ports of the dead", append(next, old...))
	for _, p := range old {
		p.hangUp()
	}
	n.each("DEL", append(old, next...), n.del)
	n.checkClean()
}

// small makes a network with addresses for five containers.
func (n *node) small(byExec, keep bool) *network {
	n.Helper()
	net := &network{name: fmt.Sprintf("small-%t-%t", byExec, keep), exec: byExec, version: "1.1.0"}
	third := len(n.networks)
	n.network(net, []map[string]any{{"type": "ptp", "ipam": map[string]any{"type": "host-local", "keepAcrossBoots": keep,
		"subnet": fmt.Sprintf("10.9.%d.0/29", third)}}})
	return net
}

// smallNetworks makes the networks of the parts with a reboot: those whose leases are free
// afterwards, and those whose leases are kept.
func (n *node) smallNetworks() (free, kept []*network) {
	n.Helper()
	return []*network{n.small(false, false), n.small(true, false)}, []*network{n.small(false, true), n.small(true, true)}
}

// upgradeFirstBoot leases all addresses by the earlier binary; the machine ends with all
// containers.
func upgradeFirstBoot(t *testing.T) {
	n := bareNode(t)
	free, kept := n.smallNetworks()
	for _, net := range append(free, kept...) {
		for i := range 5 {
			n.attach(net, fmt.Sprintf("first%d", i), 0)
		}
		if err := n.add(n.pod(net, "sixth", 0)); err == nil {
			t.Errorf("%s has six addresses", net.name)
		}
	}
}

// upgradeSecondBoot upgrades while two containers of this boot run.
func upgradeSecondBoot(t *testing.T) {
	n := bareNode(t)
	free, kept := n.smallNetworks()
	for _, net := range free {
		var pods []*pod
		for i := range 2 {
			pods = append(pods, n.attach(net, fmt.Sprintf("first%d", i), 0))
		}
		n.upgrade()
		n.each("CHECK", pods, n.check)
		for i := range 3 {
			pods = append(pods, n.attach(net, fmt.Sprintf("second%d", i), 0))
		}
		if err := n.gc(net, pods); err != nil {
			t.Error(err)
		}
		n.each("CHECK", pods, n.check)
		seen := map[netip.Addr]string{}
		for _, p := range pods {
			if seen[p.v4] != "" {
				t.Errorf("%s and %s have %s", p.ID, seen[p.v4], p.v4)
			}
			seen[p.v4] = p.ID
		}
		if err := n.add(n.pod(net, "sixth", 0)); err == nil {
			t.Errorf("%s has six addresses", net.name)
		}
		n.install(upgradeFrom)
	}
	n.upgrade()
	n.checkFull(kept)
}

// upgradeNextBoot begins with the new binary: the addresses of the boot before are free, except
// those that are kept.
func upgradeNextBoot(t *testing.T) {
	n := bareNode(t)
	n.upgrade()
	free, kept := n.smallNetworks()
	for _, net := range free {
		var pods []*pod
		for i := range 5 { // some have the same container IDs, as with a runtime that restarts its containers
			pods = append(pods, n.attach(net, fmt.Sprintf([]string{"first%d", "next%d"}[i%2], i), 0))
		}
		n.each("CHECK", pods, n.check)
		if err := n.gc(net, pods); err != nil {
			t.Error(err)
		}
		n.each("CHECK", pods, n.check)
		n.each("DEL", pods, n.del)
	}
	n.checkFull(kept)
	for _, net := range append(free, kept...) { // also entries of the cache from an earlier boot
		if err := n.gc(net, nil); err != nil {
			t.Error(err)
		}
	}
	n.noRecords()
}

// checkFull checks that networks have no free address.
func (n *node) checkFull(networks []*network) {
	n.Helper()
	for _, net := range networks {
		p := n.pod(net, "sixth", 0)
		if err := n.add(p); err == nil {
			n.Errorf("%s has an address, and keeps those of an earlier boot", net.name)
		}
		n.each("DEL", []*pod{p}, n.del)
	}
}

// upgradeDHCP upgrades while a daemon runs, and restarts the daemon afterwards.
func upgradeDHCP(t *testing.T) {
	n := bareNode(t)
	server := dhcptest.Bridge(t, n.NS, "leases0")
	dhcptest.Start4(t, server)
	n.before, n.rules = kerneltest.Snapshot(t, n.NS), n.ruleset()
	for _, byExec := range []bool{false, true} {
		n.network(&network{name: fmt.Sprintf("leased-%t", byExec), exec: byExec, version: "1.1.0"}, []map[string]any{
			{"type": "bridge", "bridge": "leases0", "ipam": map[string]any{"type": "dhcp"}}})
	}
	stop := n.daemon()
	pods := n.attachAll("old", 0)
	n.upgrade()
	n.each("the daemon of before: CHECK", pods, n.check)
	pods = append(pods, n.attachAll("between", 0)...)
	n.each("the daemon of before: CHECK", pods, n.check)
	stop()
	stop = n.daemon()
	n.each("the new daemon: CHECK", pods, n.check)
	pods = append(pods, n.attachAll("new", 0)...)
	n.each("the new daemon: CHECK", pods, n.check)
	n.gcAll(pods)
	n.each("after GC: CHECK", pods, n.check)
	n.each("DEL", pods, n.del)
	stop()
	n.checkClean()
}
