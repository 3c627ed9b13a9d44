// Package dryrun tries an ADD, and changes nothing on this host.
package dryrun

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A Run is an ADD in network namespaces of its own. One has stand-ins for the links of this
// host, with their addresses and routes, the other for those of the container. A process of this
// binary runs the plugins there, with a copy of the leases in its own state directory. It sees /run
// read-only; the lock of the rule set is therefore that of its namespace.
type Run struct {
	applet.Process
	sandbox.Network
	Runner *chain.Runner    // finds the plugins; it runs none
	Stored *chain.Describer // of the state that is copied
	Create bool             // the namespace may be missing

	host, cont, other *netns.NS     // other has the peers of stand-ins
	dir               string        // on tmpfs for the thread of run and its processes; an empty directory for others
	conf              []byte        // the list that is run
	notes             []string      // what is not done in the dry run
	kept              []int         // the plugins of the list that are in conf
	ports             []nft.Element // of the attachments of this host

	result json.RawMessage
	stderr bytes.Buffer
}

// Add tries the ADD. What it refuses, and an error of a plugin, is the error that ADD would return.
func (r *Run) Add(ctx context.Context) (*Changes, error) {
	a := r.Attachment()
	if e, err := r.Runner.Cache.Lookup(a); err == nil && e.Live() && !e.Interrupted() {
		return nil, spec.Errorf(spec.CodeBusy, "%s of container %s is attached to network %s already: run DEL first: %w", a.IfName, e.Name(), a.Network, os.ErrExist)
	}
	if err := r.Runner.Validate(r.List, r.RuntimeConf); err != nil { // with the position in the file, which the dry run does not have
		return nil, err
	}
	if err := cmp.Or(sandbox.Privileged(), r.confine()); err != nil {
		return nil, err
	}
	for _, ns := range []**netns.NS{&r.host, &r.cont, &r.other} {
		var err error
		if *ns, err = netns.New(); err != nil {
			return nil, fmt.Errorf("make a network namespace: %w", err)
		}
		defer (*ns).Close()
	}
	if err := r.populate(); err != nil {
		return nil, err
	}
	var err error
	const pattern = "cnibox-dry-run-"
	if r.dir, err = os.MkdirTemp("", pattern); err != nil { // as on a read-only root
		r.dir, err = os.MkdirTemp("/run", pattern)
	}
	if err != nil {
		return nil, err
	}
	defer os.Remove(r.dir) // its content was on the thread's tmpfs
	before, err := r.states()
	if err != nil {
		return nil, err
	}
	if err := r.run(ctx); err != nil {
		return nil, err
	}
	after, err := r.states()
	if err != nil {
		return nil, err
	}
	return r.changes(before, after), nil
}

// confine creates the list that is run, without external plugins and without effects outside the
// namespaces and the state directory.
func (r *Run) confine() error {
	var plugins []map[string]json.RawMessage
	for i := range r.List.Plugins {
		p := &r.List.Plugins[i]
		builtIn, err := r.Runner.Invoker.Find(p.Type)
		switch {
		case err != nil:
			return err
		case builtIn == nil && i == 0:
			return spec.Errorf(spec.CodeUnsupported, "plugin %s is external and is not run: without what it makes there is nothing to try", p.Type)
		case builtIn == nil:
			r.notes = append(r.notes, fmt.Sprintf("plugin %s is external and is not run", p.Type))
			continue
		}
		conf, err := spec.Members(p.Conf())
		if err != nil {
			return err
		}
		if err := r.confinePlugin(p, builtIn, conf); err != nil {
			return err
		}
		plugins, r.kept = append(plugins, conf), append(r.kept, i)
	}
	doc, err := r.List.Effective()
	if err == nil {
		r.conf, err = spec.Merge(doc, map[string]any{"plugins": plugins, "loadOnlyInlinedPlugins": true})
	}
	return err
}

// confinePlugin changes the configuration of one plugin.
func (r *Run) confinePlugin(p *chain.Plugin, builtIn *spec.Plugin, conf map[string]json.RawMessage) error {
	delete(conf, "dataDir")
	if ipam, err := spec.Members(conf["ipam"]); conf["ipam"] != nil && err == nil {
		delete(ipam, "dataDir")
		doc, err := json.Marshal(ipam)
		if err != nil {
			return err
		}
		conf["ipam"] = doc
	}
	all := []*spec.Plugin{builtIn}
	if p.IPAM != "" {
		ipam, err := r.Runner.Invoker.Find(p.IPAM)
		switch {
		case err != nil:
			return err
		case ipam == nil:
			delete(conf, "ipam")
			r.notes = append(r.notes, fmt.Sprintf("plugin %s is external and is not run: the interface gets no address", p.IPAM))
		default:
			all = append(all, ipam)
		}
	}
	for _, builtIn := range all {
		if builtIn.Confine == nil {
			continue
		}
		if note := builtIn.Confine(conf); note != "" {
			r.notes = append(r.notes, note)
		}
	}
	return nil
}

// maxStandIns is how many links get a stand-in at most: on a host with more, the others are those
// of containers.
const maxStandIns = 200

// populate creates the stand-ins.
func (r *Run) populate() error {
	if err := r.standIn(netns.Host(), r.host, func(l *rtnl.Link) bool { return spec.LabelKey(l.Alias) == "" && l.Kind != "ifb" }); err != nil {
		return fmt.Errorf("stand-ins for the links of the host: %w", err)
	}
	for _, key := range inventory.Forwarding {
		if value, err := netns.Host().Sysctl(key); err == nil {
			if err := r.host.SetSysctl(key, value); err != nil {
				return err
			}
		}
	}
	var err error
	if r.ports, err = nft.Open(netns.Host()).Elements(nft.KindPortMap); err != nil && !netfilter.IsMissing(err) {
		return err
	}
	container, err := netns.Open(r.RuntimeConf.NetNS)
	if errors.Is(err, os.ErrNotExist) && r.Create {
		return nil
	}
	if err != nil {
		return spec.Errorf(spec.CodeNetNS, "failed to open netns %q: %w", r.RuntimeConf.NetNS, err)
	}
	defer container.Close()
	if err := r.standIn(container, r.cont, func(*rtnl.Link) bool { return true }); err != nil {
		return fmt.Errorf("stand-ins for the links of the container: %w", err)
	}
	return nil
}

// standIn creates, in another namespace, links with the names, MAC addresses and MTUs of those of a
// namespace, and adds their addresses and routes that the kernel accepts. A bridge stands for a
// bridge, and one end of a veth pair, which is up if the link is, for all others.
func (r *Run) standIn(from, to *netns.NS, wanted func(*rtnl.Link) bool) error {
	old, err := rtnl.Dial(from)
	if err != nil {
		return err
	}
	defer old.Close()
	links, err := old.Links()
	if err != nil {
		return err
	}
	addrs, err := old.AllAddrs()
	if err != nil {
		return err
	}
	conn, err := rtnl.Dial(to)
	if err != nil {
		return err
	}
	defer conn.Close()
	indexes := map[uint32]uint32{}
	for i := range links {
		l := &links[i]
		if l.Flags&unix.IFF_LOOPBACK != 0 {
			indexes[l.Index] = 1 // always that of the first link in a namespace
			if err := conn.SetLink(1, rtnl.LinkChange{Up: &l.Up}); err != nil {
				return err
			}
			continue
		}
		if !wanted(l) || len(indexes) > maxStandIns {
			continue
		}
		made := rtnl.LinkSpec{Name: l.Name, MTU: min(l.MTU, 65535), Up: l.Up, Peer: &rtnl.LinkSpec{NS: r.other}}
		if l.Kind == "bridge" {
			made = rtnl.LinkSpec{Name: l.Name, Kind: rtnl.Bridge{VLANFiltering: l.VLANFiltering}, MTU: min(l.MTU, 65535), Up: l.Up}
		}
		if len(l.MAC) == 6 && l.MAC[0]&1 == 0 && !bytes.Equal(l.MAC, make([]byte, 6)) {
			made.MAC = l.MAC
		}
		link, err := conn.CreateLink(made)
		if err != nil {
			return err
		}
		indexes[l.Index] = link.Index
		for _, a := range addrs[l.Index] {
			// The kernel adds link-local addresses itself, and the loss of an existing one does not
			// matter.
			_ = conn.AddAddr(link.Index, rtnl.Addr{Prefix: a.Prefix, Peer: a.Peer, NoDAD: true, NoPrefixRoute: a.NoPrefixRoute})
		}
	}
	routes, err := old.Routes(rtnl.RouteFilter{})
	for _, route := range routes {
		if index := indexes[route.Link]; index != 0 {
			route.Link, route.OnLink = index, route.GW.IsValid()
			_ = conn.AddRoute(route) // most come with the addresses
		}
	}
	return err
}

// run runs the plugins. It passes on what the process prints to stderr, except lines about the list
// of the dry run, of which add has warned.
func (r *Run) run(ctx context.Context) error {
	var stdout bytes.Buffer
	path, exit := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), r.cont.FD()), 0
	err := netns.OnDiscardedThread(func() (err error) {
		if err := r.isolate(ctx); err != nil {
			return err
		}
		caps, err := json.Marshal(r.RuntimeConf.Capabilities)
		if err != nil {
			return err
		}
		args := []string{"cni-exec", "add", r.List.Name, path, "-o", "json",
			"-i", r.RuntimeConf.IfName, "--container-id", r.RuntimeConf.ContainerID, "--conf-dir", r.dir, "--path=", "--state-dir", r.stateCopy()}
		cmd := program.Command{Args: args, Stdin: &bytes.Buffer{}, Stdout: &stdout, Stderr: &r.stderr,
			Environ: append(sandbox.Unset(r.Environ, "CAP_ARGS", "CNI_ARGS", "CNI_NETNS_OVERRIDE", spec.StateEnv, applet.LogEnv), "CAP_ARGS="+string(caps), "CNI_ARGS="+r.RuntimeConf.CNIArgs())}
		exit, err = cmd.RunSelf(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if exit == 0 {
		r.result = bytes.ReplaceAll(stdout.Bytes(), []byte(path), []byte(r.RuntimeConf.NetNS))
		for line := range strings.Lines(r.stderr.String()) {
			if !strings.Contains(line, r.dir) {
				fmt.Fprint(r.Stderr, line)
			}
		}
		return nil
	}
	for _, note := range r.notes {
		r.Runner.Warn("%s", note)
	}
	failed := &spec.Error{Code: spec.CodeInternal}
	if json.Unmarshal(stdout.Bytes(), failed) != nil || failed.Msg == "" {
		return fmt.Errorf("the dry run ended with exit code %d: %s", exit, strings.TrimSpace(r.stderr.String()))
	}
	failed.Details, _, _ = strings.Cut(failed.Details, "; see "+r.dir)
	if strings.HasPrefix(failed.Details, "see "+r.dir) {
		failed.Details = ""
	}
	return failed
}

// stateCopy returns the state directory of the dry run.
func (r *Run) stateCopy() string { return filepath.Join(r.dir, "state") }

// isolate moves the calling thread, which is discarded afterwards, into the namespace that stands
// in for the host, and into a mount namespace with the list and the state of the dry run.
func (r *Run) isolate(ctx context.Context) error {
	if err := r.host.Enter(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"", "/", "", unix.MS_PRIVATE | unix.MS_REC},
		{"cnibox", r.dir, "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
		{"/run", "/run", "", unix.MS_BIND | unix.MS_REC},
		{"", "/run", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return &os.PathError{Op: "mount", Path: m.target, Err: err}
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "list.conflist"), r.conf, 0o600); err != nil {
		return err
	}
	return errors.Join(r.copyState(), r.copyPorts(ctx))
}

// copyPorts adds the host ports of other attachments to the dry run, so that a port in use is
// refused.
func (r *Run) copyPorts(ctx context.Context) error {
	if len(r.ports) == 0 {
		return nil
	}
	own := r.Attachment()
	return nft.Open(r.host).Update(ctx, func(x *nft.Tx) error {
		for _, e := range r.ports { // without their other elements, such as conditions
			if e.Owner() != own {
				x.Put(e)
			}
		}
		return nil
	})
}

// copyState copies the records of the plugins and the leases of the network to the state directory
// of the dry run, so that it gets the next free addresses.
func (r *Run) copyState() error {
	doc, err := r.List.Effective()
	if err != nil {
		return err
	}
	stored, copies := r.Stored.Uses(doc).Stored, chain.NewDescriber(r.Applets.Plugin, r.stateCopy()).Uses(r.conf).Stored
	for n, i := range r.kept {
		from, to := stored[i], copies[n]
		for plugin, dir := range from.Records {
			if err := copyTree(dir, to.Records[plugin]); err != nil {
				return fmt.Errorf("copy of the records of %s: %w", plugin, err)
			}
		}
		if from.Leases == "" || to.Leases == "" {
			continue
		}
		for _, sub := range []string{r.List.Name, ".cnibox/" + r.List.Name} {
			if err := copyTree(filepath.Join(from.Leases, sub), filepath.Join(to.Leases, sub)); err != nil {
				return fmt.Errorf("copy of the leases: %w", err)
			}
		}
	}
	return nil
}

// copyTree copies the files of a directory, which may be missing. It does nothing if from or to is
// empty.
func copyTree(from, to string) error {
	if from == "" || to == "" {
		return nil
	}
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil // it was released meanwhile
		}
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		info, err := e.Info()
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.IsDir():
			return os.MkdirAll(target, 0o700)
		case !e.Type().IsRegular():
			return nil
		}
		doc, err := disk.Read(path, 0, spec.MaxConf)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = os.WriteFile(target, doc, 0o600)
		}
		if err == nil {
			err = os.Chtimes(target, info.ModTime(), info.ModTime())
		}
		return err
	})
}

// Changes is what ADD would make: what is new, and the new form of what it changes. Its lists are
// never nil.
type Changes struct {
	Host      State           `json:"host"`
	Container State           `json:"container"`
	NotDone   []string        `json:"notDone"`
	Result    json.RawMessage `json:"result"` // of the specification
}

// A State is that of a namespace, in lines with the words of ip(8).
type State struct {
	Links     []string `json:"links"`
	Addresses []string `json:"addresses"`
	Routes    []string `json:"routes"`
	Rules     []string `json:"rules"`
	Settings  []string `json:"settings"`
}

// lists returns the parts of the state.
func (m *State) lists() []*[]string {
	return []*[]string{&m.Links, &m.Addresses, &m.Routes, &m.Rules, &m.Settings}
}

// states lists the state of the two namespaces.
func (r *Run) states() (both [2]State, err error) {
	for i, ns := range []*netns.NS{r.host, r.cont} {
		if both[i], err = lookAt(ns); err != nil {
			return both, err
		}
	}
	a := r.Attachment()
	owned, err := nft.Open(r.host).Owned(a)
	for _, e := range owned {
		if !e.Unread() {
			both[0].Rules = append(both[0].Rules, "nft "+e.String())
		}
	}
	for _, key := range inventory.Forwarding {
		if value, err := r.host.Sysctl(key); err == nil {
			both[0].Settings = append(both[0].Settings, strings.ReplaceAll(key, "/", ".")+" = "+value)
		}
	}
	return both, err
}

// lookAt lists the state of one namespace.
func lookAt(ns *netns.NS) (m State, err error) {
	conn, err := rtnl.Dial(ns)
	if err != nil {
		return m, err
	}
	defer conn.Close()
	links, err := conn.Links()
	if err != nil {
		return m, err
	}
	addrs, err := conn.AllAddrs()
	if err != nil {
		return m, err
	}
	names := map[uint32]string{}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	for _, l := range links {
		m.Links = append(m.Links, inventory.LinkLine(&l, names))
		for _, a := range addrs[l.Index] {
			if !a.Prefix.Addr().IsLinkLocalUnicast() { // each link that is up has one
				m.Addresses = append(m.Addresses, a.Prefix.String()+" dev "+l.Name)
			}
		}
	}
	routes, err := conn.Routes(rtnl.RouteFilter{Table: rtnl.AllTables})
	for _, route := range routes {
		local := route.Table == unix.RT_TABLE_LOCAL || route.Dst.Addr().IsMulticast() || route.Dst.Addr().IsLinkLocalUnicast()
		if !local {
			m.Routes = append(m.Routes, routeLine(route, names))
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, ruleErr := conn.Rules(family)
		err = cmp.Or(err, ruleErr)
		for _, rule := range rules {
			if rule.Src.IsValid() {
				m.Rules = append(m.Rules, fmt.Sprintf("rule from %s lookup %d", rule.Src, rule.Table))
			}
		}
	}
	return m, err
}

// routeLine formats a route in one line.
func routeLine(r rtnl.Route, names map[uint32]string) string {
	line := r.Dst.String()
	if r.Dst.Bits() == 0 {
		line = "default"
		if r.Dst.Addr().Is6() {
			line = "default (IPv6)"
		}
	}
	if r.GW.IsValid() {
		line += " via " + r.GW.String()
	}
	line += " dev " + names[r.Link]
	if r.Table != 0 && r.Table != unix.RT_TABLE_MAIN {
		line += fmt.Sprintf(" table %d", r.Table)
	}
	return line
}

// changes compares the states of the two namespaces.
func (r *Run) changes(before, after [2]State) *Changes {
	name := func(link string) string { return link[:strings.IndexByte(link, ' ')] }
	for _, link := range before[0].Links {
		if !slices.ContainsFunc(after[0].Links, func(other string) bool { return name(other) == name(link) }) {
			after[0].Links = append(after[0].Links, name(link)+" is moved into the container")
		}
	}
	for i := range after {
		old := before[i].lists()
		for j, list := range after[i].lists() {
			*list = append([]string{}, slices.DeleteFunc(*list, func(line string) bool { return slices.Contains(*old[j], line) })...)
		}
	}
	return &Changes{after[0], after[1], append([]string{}, r.notes...), r.result}
}

// Text returns the changes for a terminal.
func (c *Changes) Text() string {
	var out strings.Builder
	for i, in := range []*State{&c.Host, &c.Container} {
		fmt.Fprintf(&out, "%s:\n", [...]string{"host", "container"}[i])
		for j, list := range in.lists() {
			for _, line := range *list {
				fmt.Fprintf(&out, "  %-8s %s\n", [...]string{"link", "address", "route", "rule", "sysctl"}[j], spec.Printable(line))
			}
		}
	}
	for _, note := range c.NotDone {
		fmt.Fprintf(&out, "not done: %s\n", spec.Printable(note))
	}
	return out.String()
}
