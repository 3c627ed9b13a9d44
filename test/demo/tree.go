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

// drawTree draws the links, addresses and rules that the kernel reports.
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

// writeGraph writes the dot(1) input that cni-exec prints.
func (w *world) writeGraph(path string) error {
	out, _, err := sandbox.Call{Argv: []string{w.bin, "cni-exec", "tree", "--dot"}}.Run()
	if err != nil {
		return fmt.Errorf("cni-exec tree --dot: %w", err)
	}
	return os.WriteFile(path, out, 0o644)
}

// drawBridge draws the bridge with its ports and the containers behind them.
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

// join joins the addresses without the link-local ones. The trailing blanks separate what follows,
// also if there is no address.
func join(addrs []rtnl.Addr) string {
	var all []string
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			all = append(all, a.Prefix.String())
		}
	}
	return strings.Join(all, "  ") + "  "
}

// containerOf finds the container of a port: the result of its ADD also names the host-side veth.
func (w *world) containerOf(port rtnl.Link) *container {
	for _, c := range []*container{w.web, w.client} {
		for _, i := range c.result.Interfaces {
			if i.Name == port.Name && i.Sandbox == "" {
				return c
			}
		}
	}
	return nil
}

// drawPort draws a host-side veth and its container.
func (w *world) drawPort(port rtnl.Link, branch, below string) {
	c := w.containerOf(port)
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

// drawRules draws the elements of each container in our tables.
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

func is4(a netip.Addr) bool { return a.Is4() }
func is6(a netip.Addr) bool { return a.Is6() }
