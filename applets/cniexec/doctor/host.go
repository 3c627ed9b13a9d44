package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/launcher"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// checkKernel looks for what every network needs: nf_tables, veth pairs and bridges. STATUS of a
// network's plugins checks what else it needs.
func (d *Doctor) checkKernel(context.Context) {
	if err := nft.Open(netns.Host()).Probe(); errors.Is(err, os.ErrPermission) {
		d.skip("nf_tables", err)
	} else if err != nil {
		d.add(Finding{Check: "kernel", Message: fmt.Sprintf("nf_tables cannot be used: %v", err), Repair: "modprobe nf_tables", Code: spec.CodeHost})
	}
	for _, k := range []struct {
		option, module string
		spec           rtnl.LinkSpec
	}{
		{"CONFIG_VETH", "veth", rtnl.LinkSpec{Name: "probe0", Peer: &rtnl.LinkSpec{Name: "probe1"}}},
		{"CONFIG_BRIDGE", "bridge", rtnl.LinkSpec{Name: "probe0", Kind: rtnl.Bridge{}}},
	} {
		err := rtnl.InNewNS(func(c *rtnl.Conn) error { return c.AddLink(k.spec) })
		if errors.Is(err, os.ErrPermission) {
			d.skip("kernel", err)
			return
		}
		if errors.Is(err, unix.EOPNOTSUPP) {
			d.add(Finding{Check: "kernel", Message: fmt.Sprintf("there is no %s: %v", k.option, err), Repair: "modprobe " + k.module, Code: spec.CodeHost})
		}
	}
}

// serves reports whether the network leases addresses of a family, as far as known.
func (e *examined) serves(v4 bool) bool {
	if len(e.resources.Ranges) == 0 {
		return true
	}
	for _, r := range e.resources.Ranges {
		if r.Subnet.Addr().Is4() == v4 {
			return true
		}
	}
	return false
}

// setting returns the command that sets a sysctl.
func setting(key, value string) string {
	return fmt.Sprintf("sysctl -w %s=%s", strings.ReplaceAll(key, "/", "."), value)
}

// checkForwarding checks the settings that ADD switches on and others may have switched off.
func (d *Doctor) checkForwarding(context.Context) {
	for i, key := range inventory.Forwarding {
		for _, n := range d.examined {
			if sandbox.Sysctl(key) != "0" || !n.resources.Routed || !n.alive() || !n.serves(i == 0) || i == 1 && len(n.resources.Ranges) == 0 {
				continue
			}
			d.off = append(d.off, attach.ForwardingOff(key))
			repair, fix := forwardingOn(key)
			d.add(Finding{Check: "forwarding", Message: strings.ReplaceAll(key, "/", ".") + " is 0: containers reach nothing behind this host",
				Repair: repair, Code: spec.CodeHost, fix: fix})
			break
		}
	}
}

// checkLocalnet looks for route_localnet without the rule that protects 127.0.0.0/8.
func (d *Doctor) checkLocalnet(context.Context) {
	if slices.ContainsFunc(d.judged, flushed) { // reload makes the rule again
		return
	}
	for _, n := range d.examined {
		link := n.resources.Link
		if key := "net/ipv4/conf/" + link + "/route_localnet"; link != "" && sandbox.Sysctl(key) == "1" && !d.guarded() {
			d.add(Finding{Severity: lint.Risk, Check: "route_localnet", Repair: setting(key, "0"), Code: spec.CodeHost, Network: n.Name,
				Message: fmt.Sprintf("%s is 1 without the chain guard of table inet cnibox: hosts on %s may reach services on 127.0.0.1", strings.ReplaceAll(key, "/", "."), link)})
		}
	}
}

// guarded reports whether that rule exists, or cannot be looked for.
func (d *Doctor) guarded() bool {
	guarded, err := nft.Open(netns.Host()).HasGuard()
	return guarded || err != nil
}

// checkReversePath looks for strict reverse path filters on a host with several uplinks. They drop
// answers that arrive on another uplink.
func (d *Doctor) checkReversePath(context.Context) {
	uplinks := d.uplinks
	if len(uplinks) < 2 {
		return
	}
	for _, l := range uplinks {
		all, own := sandbox.Sysctl("net/ipv4/conf/all/rp_filter"), "net/ipv4/conf/"+l.Name+"/rp_filter"
		if max(all, sandbox.Sysctl(own)) == "1" { // the kernel uses the larger one
			d.add(Finding{Severity: lint.Risk, Check: "rp_filter", Repair: setting(own, "2"), Code: spec.CodeHost,
				Message: fmt.Sprintf("%s drops packets whose way back is another link, and this host has %d with a default route", l.Name, len(uplinks))})
		}
	}
}

// readUplinks finds the links with a default route, the preferred one first.
func (d *Doctor) readUplinks() {
	if d.inv.Links == nil {
		return
	}
	indexes, err := inventory.AskHost(inventory.Uplinks)
	if err != nil {
		return
	}
	for _, index := range indexes {
		if l := d.inv.Links.ByIndex[index]; l != nil {
			d.uplinks = append(d.uplinks, l)
		}
	}
}

// checkResolvers looks for name servers that containers cannot reach.
func (d *Doctor) checkResolvers(context.Context) {
	for _, n := range d.examined {
		file := n.Conf.InterfacePlugin().IPAM.ResolvConf
		if file == "" {
			continue
		}
		text, err := disk.Read(file, 0, record.MaxSize)
		if err != nil || sandbox.Reachable(string(text)) {
			continue // STATUS or ADD reports an error
		}
		repair := fmt.Sprintf("\"resolvConf\" in %s: a file with name servers that containers reach", n.File)
		if better := sandbox.ResolvConf(); better != "" {
			repair = fmt.Sprintf("\"resolvConf\": %q in %s", better, n.File)
		}
		d.add(Finding{Check: "resolver", Where: "network " + n.Name, Repair: repair, Code: spec.CodeHost, Network: n.Name,
			Message: fmt.Sprintf("the name servers of %s listen on the loopback of this host, where containers do not reach them", file)})
	}
}

// checkPlugins examines the directories of plugins that have some of this program.
func (d *Doctor) checkPlugins(context.Context) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		d.skip("plugin directories", err)
		return
	}
	needed := map[string]bool{} // by what is attached
	for _, a := range d.live() {
		for _, p := range a.Conf.Plugins {
			needed[p.Type], needed[p.IPAM.Type] = true, true
		}
	}
	dirs := append(filepath.SplitList(d.Path), lint.PluginDirs[:]...)
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	maps.DeleteFunc(needed, func(plugin string, _ bool) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { _, err := os.Lstat(filepath.Join(dir, plugin)); return err == nil })
	})
	for _, dir := range dirs {
		var broken, ours, others, missing []string
		for _, a := range d.Applets {
			file := filepath.Join(dir, a.Name)
			_, there := os.Lstat(file)
			_, err := os.Stat(cmp.Or(launcher.Program(file), file))
			switch {
			case there != nil && needed[a.Name]:
				missing = append(missing, a.Name)
			case a.Main != nil || there != nil:
			case launcher.Starts(file, self):
				ours = append(ours, a.Name)
			case err == nil:
				others = append(others, a.Name)
			default:
				broken = append(broken, a.Name)
			}
		}
		if len(broken) > 0 {
			d.add(Finding{Check: "plugins", Where: dir, Message: "names that lead nowhere: " + tty.Several(broken), Repair: "cnibox install " + dir, Code: spec.CodePlugin})
		}
		if len(ours) > 0 && len(missing) > 0 {
			d.add(Finding{Check: "plugins", Where: dir, Repair: "cnibox install " + dir, Code: spec.CodePlugin,
				Message: fmt.Sprintf("%s missing beside %s of this program, and needed by what is attached", tty.Several(missing), tty.Plural(len(ours), "plugin"))})
		}
		if len(ours) > 0 && len(others) > 0 {
			d.add(Finding{Severity: lint.Risk, Check: "plugins", Where: dir, Repair: "cnibox install " + dir, Code: spec.CodePlugin,
				Message: fmt.Sprintf("%s of another program beside %s of this one", tty.Several(others), tty.Plural(len(ours), "plugin"))})
		}
	}
}
