package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// left returns what attachments have left on the node: ports of the bridge, leases, state files of
// flannel, results of the runtime, and set elements.
func (n *node) left() (left []string, err error) {
	var links []struct{ IfName, Master string }
	text, err := n.run("ip", "-j", "link")
	if err == nil {
		err = json.Unmarshal([]byte(text), &links)
	}
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Master != "" {
			left = append(left, "link "+l.IfName)
		}
	}
	for _, pattern := range []string{"networks/" + network + "/*", "flannel/*", "results/*"} {
		files, err := filepath.Glob(n.root("/var/lib/cni/" + pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			name := filepath.Base(f)
			if strings.HasPrefix(pattern, "networks") {
				if _, err := netip.ParseAddr(name); err != nil {
					continue // lock file, or last address
				}
			}
			left = append(left, filepath.Join(filepath.Dir(pattern), name))
		}
	}
	elements, err := n.elements()
	return append(left, elements...), err
}

// elementComment matches the comment of an element of cnibox's sets and maps in `nft -j`; it ends
// with the owner.
var elementComment = regexp.MustCompile(`"comment": *"([^"]*)"`)

// elements lists the elements of cnibox's sets and maps: the set and the owner.
func (n *node) elements() (found []string, err error) {
	text, err := n.run("nft", "-j", "list", "ruleset")
	if err != nil {
		return nil, err
	}
	type set struct {
		Table, Name string
		Elem        []json.RawMessage
	}
	var doc struct{ Nftables []struct{ Set, Map *set } }
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	for _, o := range doc.Nftables {
		for _, s := range []*set{o.Set, o.Map} {
			if s == nil || s.Table != "cnibox" {
				continue
			}
			for _, e := range s.Elem {
				owner := string(e) // without an owner
				if m := elementComment.FindSubmatch(e); m != nil {
					owner = string(m[1])
				}
				found = append(found, fmt.Sprintf("element of %s: %s", s.Name, owner))
			}
		}
	}
	return found, nil
}

// leases returns the addresses with a lease file.
func (n *node) leases() (found []netip.Addr, err error) {
	files, err := filepath.Glob(n.root("/var/lib/cni/networks/" + network + "/*"))
	for _, f := range files {
		if a, err := netip.ParseAddr(filepath.Base(f)); err == nil {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, err
}

// wantLeases checks that the node's pods have leases, and nothing else has.
func (n *node) wantLeases() error {
	var want []netip.Addr
	for _, p := range n.pods {
		want = append(want, p.addrs[:]...)
	}
	slices.SortFunc(want, netip.Addr.Compare)
	got, err := n.leases()
	if err == nil && (!slices.Equal(got, want) || len(slices.Compact(want)) != 2*len(n.pods)) {
		err = fmt.Errorf("%s has leases of %v, want %v", n.name, got, want)
	}
	return err
}

// wantOwned checks that all ports, leases, state files, results and elements on the node belong to
// its pods, and that each pod has at least a lease of both families, a port, a state file and a
// result.
func (n *node) wantOwned() error {
	if err := n.wantLeases(); err != nil {
		return err
	}
	left, err := n.left()
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, what := range left {
		kind, rest, _ := strings.Cut(what, " ")
		if kind == "element" {
			owner := rest[strings.LastIndex(rest, " ")+1:]
			id, _, _ := strings.Cut(strings.TrimPrefix(owner, network+"/"), "/")
			if n.pods[id] == nil {
				return fmt.Errorf("%s: %s is of no pod", n.name, what)
			}
			continue
		}
		if kind != "link" {
			kind = filepath.Dir(what)
		}
		count[kind]++
	}
	want := map[string]int{"link": len(n.pods), "flannel": len(n.pods), "results": len(n.pods), "networks/" + network: 2 * len(n.pods)}
	for kind, number := range want {
		if count[kind] != number {
			return fmt.Errorf("%s: %d of %q, want %d: %s", n.name, count[kind], kind, number, strings.Join(left, ", "))
		}
	}
	return nil
}
