package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"cnibox/applets/cniexec/hint"
	"cnibox/applets/record"
	"cnibox/chain"
	"cnibox/internal/netns"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// rebuildable are the capabilities whose values the host has: the rule set has the ports, the
// namespace and the lease the others, which no verb after ADD needs.
var rebuildable = []string{spec.CapPorts, "ips", "mac", "dns"}

// offerRebuild adds the fix to the finding of a broken entry, or the reason why there is none.
func (d *Doctor) offerRebuild(ctx context.Context, f *Finding, a spec.Attachment) {
	fix, err := d.rebuild(ctx, a)
	if err != nil {
		f.Message += "; it cannot be rebuilt: " + hint.Line(err)
		return
	}
	f.Repair, f.fix = "cni-exec doctor --fix", fix
}

// rebuild returns a function that creates the entry of an attachment again: from the configuration
// of its network, the namespace to which its link leads, its lease, and its ports in the rule set.
// The error says why these are not enough for CHECK and DEL.
func (d *Doctor) rebuild(ctx context.Context, a spec.Attachment) (func(context.Context) error, error) {
	i := slices.IndexFunc(d.examined, func(n *examined) bool { return n.Name == a.Network && n.list != nil })
	if i < 0 {
		return nil, fmt.Errorf("network %s has no configuration", a.Network)
	}
	n := d.examined[i]
	l, t := n.list, chain.RuntimeConf{ContainerID: a.ContainerID, IfName: a.IfName}
	for _, p := range l.Plugins {
		if !d.builtIn(p.Type) {
			return nil, fmt.Errorf("plugin %s is an external program", p.Type)
		}
		for capability, takes := range p.Capabilities {
			if takes && !slices.Contains(rebuildable, capability) && !(capability == "bandwidth" && known(n, &p, a)) {
				return nil, fmt.Errorf("plugin %s takes %s, whose value is nowhere on the host", p.Type, capability)
			}
			if takes && capability == spec.CapPorts {
				t.Capabilities = d.publishedIn(a)
				if t.Capabilities == nil && (d.rules == nil || recorded(n, p.Type, a)) {
					return nil, errors.New("it has published ports, which are not in the rule set any more")
				}
			}
		}
	}
	var err error
	if t.NetNS, err = d.netnsOf(a); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, d.Limit)
	defer cancel()
	return func(ctx context.Context) error { return d.Runner.Rebuild(ctx, l, t, true) }, d.Runner.Rebuild(within, l, t, false)
}

// known reports whether the value of the capability bandwidth is not needed to make an entry anew: the
// limits of the configuration count for both directions, or nothing is limited.
func known(n *examined, p *chain.Plugin, a spec.Attachment) bool {
	var limits struct{ IngressRate, IngressBurst, EgressRate, EgressBurst uint64 }
	err := json.Unmarshal(p.Conf(), &limits)
	return err == nil && limits.IngressRate|limits.IngressBurst != 0 && limits.EgressRate|limits.EgressBurst != 0 || !recorded(n, p.Type, a)
}

// recorded reports whether a plugin has a record of an attachment.
func recorded(n *examined, plugin string, a spec.Attachment) bool {
	return slices.ContainsFunc(n.Conf.Stored, func(s chain.Stored) bool {
		dir := s.Records[plugin]
		_, err := os.Lstat(filepath.Join(dir, record.Name(a)))
		return dir != "" && err == nil
	})
}

// publishedIn returns the ports of an attachment in the rule set, in the form of runtimeConfig.
func (d *Doctor) publishedIn(a spec.Attachment) map[string]json.RawMessage {
	ports := []spec.Port{}
	for _, e := range d.rules[a.Key()] {
		if e.Kind() != nft.KindPortMap {
			continue
		}
		proto, port := e.Port()
		p := spec.Port{HostPort: port, ContainerPort: e.Target().Port(), Protocol: proto}
		if ip := e.Addr(); ip.IsValid() {
			p.HostIP = ip.String()
		}
		if !slices.Contains(ports, p) { // each family has one
			ports = append(ports, p)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	value, _ := json.Marshal(ports) // numbers and strings
	return map[string]json.RawMessage{spec.CapPorts: value}
}

// errFound ends a search.
var errFound = errors.New("found")

// netnsOf returns a path of the namespace with the peer of an attachment's veth.
func (d *Doctor) netnsOf(a spec.Attachment) (at string, err error) {
	var host *rtnl.Link
	if d.inv.Links != nil {
		host = d.inv.Links.ByKey[a.Key()]
	}
	if host == nil || host.Kind != "veth" {
		return "", errors.New("it has no veth on the host, which would lead to its namespace")
	}
	own, err := rtnl.Dial(netns.Host())
	if err != nil {
		return "", err
	}
	defer own.Close()
	peer, err := own.Peer(host)
	if err != nil {
		return "", err
	}
	_, err = netns.Each(func(path string, ns *netns.NS) error {
		if ns == nil {
			return nil
		}
		conn, err := rtnl.Dial(ns)
		if err != nil {
			return err
		}
		defer conn.Close()
		l, err := conn.Link(a.IfName)
		if err == nil && l.Kind == "veth" && l.Index == peer.Index && l.Parent == host.Index && bytes.Equal(l.MAC, peer.MAC) {
			at = path
			return errFound
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	switch {
	case errors.Is(err, errFound):
		return at, nil
	case err == nil:
		err = fmt.Errorf("no network namespace has the other end of %s", host.Name)
	}
	return "", err
}
