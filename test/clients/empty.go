package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
)

// network is the name of the network in the configuration.
const network = "clients"

// empty fails while anything of a container is left. The bridge and the tables stay.
func (h *host) empty() error {
	left, err := h.leftovers()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return err
}

// leftovers finds ports of bridges, ifbs, rules with an owner, leases, entries of libcni's cache,
// and records of plugins.
func (h *host) leftovers() (left []string, err error) {
	links, err := h.links.Links()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Master != 0 || l.Kind == "ifb" {
			left = append(left, "link "+l.Name)
		}
	}
	rules, err := ownedRules()
	if err != nil {
		return nil, err
	}
	left = append(left, rules...)
	addrs, err := leases()
	if err != nil {
		return nil, err
	}
	for _, ip := range addrs {
		left = append(left, "lease "+ip.String())
	}
	for _, pattern := range []string{"/var/lib/cni/results/*", "/run/cnibox/*/*", "/run/cni/*/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		left = append(left, files...)
	}
	return left, nil
}

// ownedRules returns the lines of the rule set that name an attachment.
func ownedRules() (lines []string, err error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	text, err := nfttest.Read(ns)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for line := range strings.Lines(text) {
		if _, owner, _ := strings.Cut(line, ` comment "`); strings.Contains(owner, "/") {
			lines = append(lines, "rule "+strings.TrimSpace(line))
		}
	}
	return lines, err
}

// leases returns the leased addresses of all networks.
func leases() (taken []netip.Addr, err error) {
	files, err := filepath.Glob("/var/lib/cni/networks/*/*")
	for _, file := range files {
		if ip, err := netip.ParseAddr(filepath.Base(file)); err == nil {
			taken = append(taken, ip)
		}
	}
	return taken, err
}

// address returns the address of a container's eth0 in libcni's cache.
func address(id string) (ip netip.Addr, err error) {
	b, err := os.ReadFile("/var/lib/cni/results/" + network + "-" + id + "-eth0")
	if err != nil {
		return ip, err
	}
	var entry struct {
		Result struct {
			IPs []struct{ Address netip.Prefix }
			DNS struct{ Nameservers []string }
		}
	}
	if err := json.Unmarshal(b, &entry); err != nil {
		return ip, err
	}
	if len(entry.Result.IPs) != 1 || len(entry.Result.DNS.Nameservers) != 1 {
		return ip, fmt.Errorf("result of %s: %s; want one address and one name server", id, b)
	}
	return entry.Result.IPs[0].Address.Addr(), nil
}
