package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/attach"
	"cnibox/applets/cniexec/inventory"
	"cnibox/applets/cniexec/sandbox"
	"cnibox/applets/cniexec/watch"
	"cnibox/applets/lint"
	"cnibox/applets/record"
	"cnibox/internal/dbus"
	"cnibox/internal/disk"
	"cnibox/internal/netns"
	"cnibox/internal/tty"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// checkKernel looks for what every network needs: nf_tables, veth pairs and bridges. What else
// a network needs, STATUS of its plugins looks for.
func (d *Doctor) checkKernel(context.Context) {
	if err := nft.Open(netns.Host()).Probe(); errors.Is(err, os.ErrPermission) {
		d.skip("nf_tables", err)
	} else if err != nil {
		d.find("kernel", "modprobe nf_tables", nil, "nf_tables cannot be used: %v", err)
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
			d.find("kernel", "modprobe "+k.module, nil, "there is no %s: %v", k.option, err)
		}
	}
}

// askTime is how long a daemon or the STATUS of a plugin may take that doctor asks.
const askTime = 3 * time.Second

// checkTime is how long CHECK of an attachment may take: several plugins, on a slow machine.
const checkTime = 10 * time.Second

// checkBlockers looks for chains of other programs that drop what is forwarded.
func (d *Doctor) checkBlockers(ctx context.Context) {
	blockers, err := nft.Open(netns.Host()).Blockers()
	if err != nil {
		d.skip("forward chains of other programs", err)
		return
	}
	d.blockers = blockers
	for _, b := range blockers {
		for _, n := range d.examined {
			link := cmp.Or(n.resources.Link, "veth*")
			if !n.resources.Routed || b.Family == "ip6" && !n.serves(false) || b.Family == "ip" && !n.serves(true) || b.Lets(link) || d.passes(ctx, &b, n) {
				continue
			}
			what := fmt.Sprintf("%s: chain %s of table %s %s drops what it does not accept, and no accept of another table overrules that", n.Name, b.Chain, b.Family, b.Table)
			switch {
			case b.Table == "firewalld" && n.resources.Link != "":
				d.find("firewalld", "firewall-cmd --zone=trusted --add-interface="+n.resources.Link+" --permanent && firewall-cmd --reload", nil, "%s", what).Network = n.Name
			default:
				d.find("forward policy", letThrough(b, link), nil, "%s", what).Network = n.Name
			}
		}
	}
	if names, err := disk.Read("/proc/net/ip_tables_names", 0, record.MaxSize); err == nil && slices.Contains(strings.Fields(string(names)), "filter") {
		d.find("forward policy", "iptables-legacy -S FORWARD", nil, "iptables-legacy has a table filter, which cannot be looked into here and may drop what is forwarded")
	}
}

// passes reports whether a chain that drops lets the packets of a network through for another reason
// than their link: a plugin has them accepted, or firewalld trusts the link.
func (d *Doctor) passes(ctx context.Context, b *nft.Blocker, n *examined) bool {
	if b.Table == "firewalld" {
		return n.list != nil && n.Conf.Zoned || d.trusts(ctx, n.resources.Link)
	}
	return b.Asks && n.Conf.Accepts
}

// trusts reports whether firewalld has a link in its zone trusted, which accepts what is forwarded.
// One that does not answer is asked once.
func (d *Doctor) trusts(ctx context.Context, link string) bool {
	if d.hung {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	trusted := false
	sockets, err := watch.BusSockets(d.Getenv(spec.SystemBusEnv))
	if err == nil {
		trusted, err = isTrusted(ctx, sockets, link)
	}
	if err != nil && ctx.Err() != nil {
		d.hung = true
		d.skip("firewalld", err)
	}
	return trusted
}

// isTrusted asks firewalld whether a link is in its zone trusted.
func isTrusted(ctx context.Context, sockets []string, link string) (bool, error) {
	bus, err := dbus.Dial(ctx, sockets...)
	if err != nil {
		return false, err
	}
	defer bus.Close()
	method := dbus.Method{Service: watch.Firewalld, Path: "/org/fedoraproject/FirewallD1", Interface: watch.Firewalld + ".zone", Name: "queryInterface"}
	return bus.Ask(method, "trusted", link)
}

// letThrough are the commands that let the packets of a link pass a chain.
func letThrough(b nft.Blocker, link string) string {
	line := fmt.Sprintf("nft insert rule %s %s %s", b.Family, b.Table, b.Chain)
	return fmt.Sprintf("%s iifname %q accept\n%s oifname %q accept", line, link, line, link)
}

// serves reports whether the network gives addresses of a family, as far as is known.
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

// setting is a repair of a sysctl.
func setting(key, value string) string {
	return fmt.Sprintf("sysctl -w %s=%s", strings.ReplaceAll(key, "/", "."), value)
}

// checkForwarding looks at what ADD switches on, and others may have switched off.
func (d *Doctor) checkForwarding(context.Context) {
	for i, key := range inventory.Forwarding {
		for _, n := range d.examined {
			if sandbox.Sysctl(key) != "0" || !n.resources.Routed || !n.alive() || !n.serves(i == 0) || i == 1 && len(n.resources.Ranges) == 0 {
				continue
			}
			d.off = append(d.off, attach.ForwardingOff(key))
			d.find("forwarding", setting(key, "1"), func(context.Context) error { return netns.Host().SetSysctl(key, "1") },
				"%s is 0: containers reach nothing behind this host", strings.ReplaceAll(key, "/", "."))
			break
		}
	}
}

// checkSettings looks at settings that are others' to choose.
func (d *Doctor) checkSettings(ctx context.Context) {
	for _, family := range []string{"ip", "ip6"} {
		key := "net/bridge/bridge-nf-call-" + family + "tables" // iptables and ip6tables
		i := slices.IndexFunc(d.blockers, func(b nft.Blocker) bool {
			return (b.Family == family || b.Family == "inet") && slices.ContainsFunc(d.examined, func(n *examined) bool {
				bridge := d.inv.Bridge(n.Conf)
				return bridge != "" && n.serves(family == "ip") && !b.LetsWithin(bridge) && !d.passes(ctx, &b, n)
			})
		})
		if i >= 0 && sandbox.Sysctl(key) == "1" {
			b := d.blockers[i]
			d.find("bridge netfilter", setting(key, "0"), nil, "packets within a bridge pass the chains that drop, too: chain %s of table %s %s", b.Chain, b.Family, b.Table)
		}
	}
	for _, n := range d.examined {
		link := n.resources.Link
		if key := "net/ipv4/conf/" + link + "/route_localnet"; link != "" && sandbox.Sysctl(key) == "1" && !d.guarded() {
			d.find("route_localnet", setting(key, "0"), nil, "%s is 1 without the chain guard of table inet cnibox: hosts on %s may reach services on 127.0.0.1", strings.ReplaceAll(key, "/", "."), link).Network = n.Name
		}
	}
	d.checkReversePath()
}

// guarded reports whether the rule is there that makes route_localnet harmless, or cannot be looked for.
func (d *Doctor) guarded() bool {
	there, err := nft.Open(netns.Host()).Guarded()
	return there || err != nil
}

// checkReversePath looks for strict filters on a host with several ways out, which drop answers
// that come in by another one.
func (d *Doctor) checkReversePath() {
	uplinks := d.uplinks
	if len(uplinks) < 2 {
		return
	}
	for _, l := range uplinks {
		all, own := sandbox.Sysctl("net/ipv4/conf/all/rp_filter"), "net/ipv4/conf/"+l.Name+"/rp_filter"
		if max(all, sandbox.Sysctl(own)) == "1" { // the kernel takes the larger one
			d.find("rp_filter", setting(own, "2"), nil, "%s drops packets whose way back is another link, and this host has %d with a default route", l.Name, len(uplinks))
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

// checkMTU looks for networks whose packets do not fit the way out.
func (d *Doctor) checkMTU(context.Context) {
	uplinks := d.uplinks
	if len(uplinks) == 0 {
		return
	}
	for _, n := range d.examined {
		l := d.inv.Links.ByName[n.resources.Link]
		if l == nil || !n.resources.Routed || l.MTU <= uplinks[0].MTU {
			continue
		}
		d.find("mtu", fmt.Sprintf("ip link set %s mtu %d    # and \"mtu\": %[2]d in %s", l.Name, uplinks[0].MTU, n.File), nil,
			"%s: %s has MTU %d, and the way out, %s, has %d: large packets are fragmented or lost", n.Name, l.Name, l.MTU, uplinks[0].Name, uplinks[0].MTU).Network = n.Name
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
		d.find("resolver", repair, nil, "%s: the name servers of %s listen on the loopback of this host, where containers do not reach them", n.Name, file).Network = n.Name
	}
}

// checkPlugins looks at the directories of plugins that have some of this program.
func (d *Doctor) checkPlugins(context.Context) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		d.skip("plugin directories", err)
		return
	}
	dirs := append(filepath.SplitList(d.Path), lint.PluginDirs[:]...)
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		var broken, ours, others []string
		for _, a := range d.Applets {
			file := filepath.Join(dir, a.Name)
			info, err := os.Stat(file)
			switch {
			case a.Main != nil:
			case err == nil && os.SameFile(info, self):
				ours = append(ours, a.Name)
			case err == nil:
				others = append(others, a.Name)
			default:
				if _, err := os.Lstat(file); err == nil {
					broken = append(broken, a.Name)
				}
			}
		}
		if len(broken) > 0 {
			d.find("plugins", "cnibox install "+dir, nil, "%s: links that lead nowhere: %s", dir, tty.Several(broken))
		}
		if len(ours) > 0 && len(others) > 0 {
			d.find("plugins", "cnibox install "+dir, nil, "%s: %s of another program beside %s of this one", dir, tty.Several(others), tty.Plural(len(ours), "plugin"))
		}
	}
}
