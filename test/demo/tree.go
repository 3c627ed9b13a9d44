package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/test/sandbox"
)

// drawTree shows links, addresses and rules as the kernel has them.
// Nothing is drawn from memory: what was not made is not there.
func (w *world) drawTree() error {
	links, err := w.hostLinks.Links()
	if err != nil {
		return err
	}
	w.page.line("host")
	for _, l := range links {
		switch l.Kind {
		case "veth":
			if l.Master == 0 {
				w.page.line(fmt.Sprintf("├─ %-11s %s ── outside %s", l.Name, hostAddr, outsideAddr.Addr()))
			}
		case "bridge":
			if err := w.drawBridge(l, links); err != nil {
				return err
			}
		}
	}
	return w.drawRules()
}

// writeGraph writes the input of dot(1) that cni-exec prints.
func (w *world) writeGraph(path string) error {
	out, _, err := sandbox.Call{Argv: []string{w.bin, "cni-exec", "tree", "--dot"}}.Run()
	if err != nil {
		return fmt.Errorf("cni-exec tree --dot: %w", err)
	}
	return os.WriteFile(path, out, 0o644)
}

// drawBridge shows the bridge with its ports and what is behind them.
func (w *world) drawBridge(bridge rtnl.Link, links []rtnl.Link) error {
	addrs, err := w.hostLinks.Addrs(bridge.Index)
	if err != nil {
		return err
	}
	w.page.line(fmt.Sprintf("└─ %-11s %s\tbridge", bridge.Name, join(addrs)))
	var ports []rtnl.Link
	for _, l := range links {
		if l.Master == bridge.Index {
			ports = append(ports, l)
		}
	}
	for i, port := range ports {
		branch, below := "├─", "│"
		if i == len(ports)-1 {
			branch, below = "└─", " "
		}
		w.drawPort(port, "   "+branch, "   "+below)
	}
	return nil
}

// join writes addresses, the link-local ones left out.
// The blanks at the end keep what follows apart, also where there is none.
func join(addrs []rtnl.Addr) string {
	var all []string
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			all = append(all, a.Prefix.String())
		}
	}
	return strings.Join(all, "  ") + "  "
}

// behind finds the container at the other end: the result of its ADD names the
// host's end of the pair, too.
func (w *world) behind(port rtnl.Link) *container {
	for _, c := range []*container{w.web, w.client} {
		for _, i := range c.result.Interfaces {
			if i.Name == port.Name && i.Sandbox == "" {
				return c
			}
		}
	}
	return nil
}

// drawPort shows the host's end of a pair and the container at the other.
func (w *world) drawPort(port rtnl.Link, branch, below string) {
	c := w.behind(port)
	if c == nil {
		w.page.line(branch + " " + port.Name)
		return
	}
	var addrs, macs []string
	for _, ip := range c.result.IPs {
		addrs = append(addrs, ip.Address.String())
	}
	for _, i := range c.result.Interfaces {
		if i.Sandbox != "" {
			macs = append(macs, i.Mac)
		}
	}
	w.page.line(fmt.Sprintf("%s %s ── %-6s %s", branch, port.Name, c.name, strings.Join(addrs, "  ")))
	w.page.line(fmt.Sprintf("%s\t%18seth0   %s", below, "", strings.Join(macs, " ")))
}

// drawRules shows what each container owns of the packet filter's tables.
func (w *world) drawRules() error {
	table := nft.Open(w.host)
	w.page.line("rules\t  in nftables, each with its owner's name")
	for _, c := range []*container{w.web, w.client} {
		elements, err := table.Owned(c.attachment())
		if err != nil {
			return err
		}
		for _, e := range elements {
			w.page.line(fmt.Sprintf("   %-7s %s", c.name, strings.ReplaceAll(e.String(), "->", "→")))
		}
	}
	return nil
}

// is4 and is6 select addresses by family.
func is4(a netip.Addr) bool { return a.Is4() }
func is6(a netip.Addr) bool { return a.Is6() }
