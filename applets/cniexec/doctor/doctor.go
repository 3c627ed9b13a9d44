// Package doctor looks for what keeps networks of a host from working.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cnibox/applets/applet"
	"cnibox/applets/cniexec/hint"
	"cnibox/applets/cniexec/inventory"
	"cnibox/applets/lint"
	"cnibox/chain"
	"cnibox/internal/netns"
	"cnibox/internal/tty"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A Finding is something that keeps networks of this host from working, or may. check, status, gc,
// reload and boot have the same of what is not as it should be.
type Finding struct {
	Check       string `json:"check"`       // the part that was looked at
	Network     string `json:"network"`     // this and the next three are what it is about; empty: no single one
	ContainerID string `json:"containerID"` // of an attachment
	IfName      string `json:"ifName"`
	NetNS       string `json:"netns"`
	Code        int    `json:"code"`    // of the error; 0: there is no error
	Message     string `json:"message"` // one line
	Repair      string `json:"repair"`  // a command, or what to change
	Own         bool   `json:"own"`     // doctor --fix does it

	fix  func(context.Context) error // nil: it is not cnibox's own
	each []Finding                   // of single attachments, where several have it
}

// Of sets the attachment that a finding is about.
func (f *Finding) Of(a spec.Attachment, netns string) {
	f.Network, f.ContainerID, f.IfName, f.NetNS = a.Network, a.ContainerID, a.IfName, netns
}

// Failed sets the error that a finding is.
func (f *Finding) Failed(err error) {
	f.Code, f.Message = spec.AsError(err).Code, spec.Printable(hint.Reason(err))
}

// Fault is the finding of what CHECK or RESTORE has found of an attachment, and what repairs it.
func Fault(a spec.Attachment, netns string, err error) Finding {
	f := Finding{Check: "attachment", Repair: "cni-exec reload " + a.ContainerID, Own: true}
	if errors.Is(err, spec.ErrAnew) {
		f.Repair, f.Own = chain.DelCommand(a)+"    # and add it again", false
	}
	f.Of(a, netns)
	f.Failed(err)
	return f
}

// A Doctor looks at a host: at the kernel, what other programs have set up, the networks and
// what is attached. It changes nothing; [Doctor.Treat] does.
type Doctor struct {
	Host
	inv      *inventory.Inventory
	rules    map[string][]nft.Holding // by the owner's key; nil: not read
	unlisted bool                     // the cache has entries that could not be read, so what has no entry may have an owner
	examined []*examined
	uplinks  []*rtnl.Link
	blockers []nft.Blocker
	off      []string // what CHECK of each attachment says of forwarding that is off
	hung     bool     // firewalld does not answer
	linted   []*lint.Finding
	Found    []Finding
	Fixed    []Finding                         // by Treat
	Untested []string                          // and why
	searched map[string]*inventory.OwnerSearch // by network
}

// An examined network is one with what its plugins say of their configuration.
type examined struct {
	*inventory.Network
	list      *chain.List // nil: its configuration is gone
	resources spec.Resources
	invalid   map[int]bool // plugins of which an error of lint says all that STATUS would
}

// A Host is what a doctor needs to know of the call.
type Host struct {
	Runner        *chain.Runner
	Plugins       *chain.Describer
	Applets       applet.Table
	Getenv        func(string) string
	ConfDir, Path string // as the flags have them

	Networks func(*inventory.Inventory) []*inventory.Network // prints nothing
	Lint     func(dir string) ([]*lint.Finding, error)
	Restore  func(context.Context, []*chain.Entry) error // what CHECK finds a fault of
}

// Examine looks at everything.
func Examine(ctx context.Context, h Host) (*Doctor, error) {
	d := &Doctor{Host: h, searched: map[string]*inventory.OwnerSearch{}}
	var err error
	d.inv, err = inventory.New(h.Runner.Cache, h.Plugins)
	switch {
	case errors.Is(err, os.ErrPermission):
		d.unlisted = true
		d.inv = inventory.Empty(h.Runner.Cache, h.Plugins)
		d.inv.ReadHost()
		d.skip("attachments", err)
	case err != nil:
		return nil, err
	}
	for _, err := range d.inv.Unread {
		d.Untested = append(d.Untested, spec.Printable(err.Error()))
	}
	d.readRules()
	d.readUplinks()
	d.readNetworks()
	for _, check := range []func(context.Context){
		d.checkCache, d.checkKernel, d.checkConfigurations, d.checkStatus, d.checkBlockers, d.checkForwarding, d.checkSettings,
		d.checkUplink, d.checkMTU, d.checkPortMTU, d.checkDuplicates, d.checkNeighbours, d.checkListeners, d.checkResolvers, d.checkPlugins, d.checkStale, d.checkAttachments, d.checkOrphans,
	} {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		check(ctx)
	}
	return d, nil
}

// readRules reads what attachments have in the rule set.
func (d *Doctor) readRules() {
	held, err := nft.Open(netns.Host()).Holdings()
	if err != nil {
		d.skip("rules", err)
		return
	}
	d.rules = map[string][]nft.Holding{}
	for _, h := range held {
		d.rules[h.Key] = append(d.rules[h.Key], h)
	}
}

// find adds a finding, and returns it. One with a fix is cnibox's own.
func (d *Doctor) find(check, repair string, fix func(context.Context) error, format string, args ...any) *Finding {
	d.Found = append(d.Found, Finding{Check: check, Message: spec.Printable(fmt.Sprintf(format, args...)), Repair: repair, Own: fix != nil, fix: fix})
	return &d.Found[len(d.Found)-1]
}

// split has one finding for each of several attachments.
func (f *Finding) split(of []*inventory.Entry, message func(*inventory.Entry) string) {
	for _, a := range of {
		one := *f
		one.each = nil
		one.Of(a.Attachment(), a.NetNSPath())
		one.Message = spec.Printable(message(a))
		f.each = append(f.each, one)
	}
}

// Single are the findings, with one for each attachment where several have the same.
func Single(found []Finding) []Finding {
	single := []Finding{}
	for _, f := range found {
		if len(f.each) == 0 {
			f.each = []Finding{f}
		}
		single = append(single, f.each...)
	}
	return single
}

// skip notes what could not be looked at.
func (d *Doctor) skip(check string, err error) {
	d.Untested = append(d.Untested, check+": "+spec.Printable(err.Error()))
}

// readNetworks asks the plugins of each network which resources they use.
func (d *Doctor) readNetworks() {
	lists, _ := chain.Lists(d.ConfDir) // what is wrong with the others, lint says
	for _, n := range d.Networks(d.inv) {
		e := &examined{Network: n, invalid: map[int]bool{}}
		if i := slices.IndexFunc(lists, func(l *chain.List) bool { return l.Name == n.Name }); i >= 0 {
			e.list = lists[i]
			for j := range e.list.Plugins {
				p := &e.list.Plugins[j]
				r, err := d.Runner.Request(spec.Status, e.list, p, chain.Target{})
				if err != nil {
					continue
				}
				r.Warn = func(string, ...any) {}
				resources, err := r.Validate(p.Type)
				if err != nil {
					e.invalid[j] = spec.AsError(err).Code == spec.CodeConfig
					continue
				}
				e.resources.Add(resources)
			}
		}
		d.examined = append(d.examined, e)
	}
}

// alive reports whether anything is attached to the network.
func (e *examined) alive() bool { return slices.ContainsFunc(e.Attached, (*inventory.Entry).Alive) }

// Treat does what is cnibox's own, and examines the host again. What only shows then, as behind the
// first fault that CHECK found, is done as well.
func (d *Doctor) Treat(ctx context.Context) (*Doctor, error) {
	const rounds = 4
	for n := 0; ; n++ {
		after, err := d.treatOnce(ctx)
		if err != nil || n == rounds {
			return after, err
		}
		fresh := func(f Finding) bool { return f.fix != nil && !d.has(f) }
		if !slices.ContainsFunc(after.Found, fresh) {
			return after, nil
		}
		d = after
	}
}

// has reports whether a finding is one of these.
func (d *Doctor) has(f Finding) bool {
	return slices.ContainsFunc(d.Found, func(o Finding) bool { return o.Check == f.Check && o.Message == f.Message })
}

// treatOnce does what is cnibox's own, examines the host again, and prints what was fixed.
func (d *Doctor) treatOnce(ctx context.Context) (*Doctor, error) {
	for _, f := range d.Found {
		if f.fix == nil {
			continue
		}
		if err := f.fix(ctx); err != nil {
			d.Runner.Warn("%s: %v", f.Check, hint.Line(err))
		}
	}
	after, err := Examine(ctx, d.Host)
	if err != nil {
		return nil, err
	}
	after.Fixed = d.Fixed
	for _, f := range d.Found {
		if f.fix != nil && !after.has(f) {
			d.Runner.Warn("fixed: %s: %s", f.Check, f.Message)
			after.Fixed = append(after.Fixed, f)
		}
	}
	return after, nil
}

// Text is the findings as lines.
func (d *Doctor) Text() string {
	var out strings.Builder
	for _, f := range d.Found {
		fmt.Fprintf(&out, "%s: %s\n", f.Check, f.Message)
		for line := range strings.Lines(f.Repair) {
			fmt.Fprintf(&out, "    %s\n", spec.Printable(strings.TrimSuffix(line, "\n")))
		}
	}
	return out.String()
}

// checkConfigurations is lint; the mistakes in a file are one finding.
func (d *Doctor) checkConfigurations(context.Context) {
	found, err := d.Lint(d.ConfDir)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err != nil {
		d.skip("configuration", err)
		return
	}
	d.linted = found
	counts, first := map[string]int{}, map[string]string{}
	for _, f := range found {
		if errors.Is(f.Unread, os.ErrPermission) {
			d.skip("configuration", f.Unread)
			continue
		}
		if counts[f.File]++; counts[f.File] == 1 {
			first[f.File] = f.String()
		}
	}
	for _, file := range slices.Sorted(maps.Keys(counts)) {
		text := first[file]
		if n := counts[file]; n > 1 {
			text += fmt.Sprintf("; and %s more", tty.Plural(n-1, "mistake"))
		}
		d.find("configuration", "cni-exec lint "+file, nil, "%s", text)
	}
}

// checkStatus runs STATUS of the plugins that are built in, which find what the kernel and the host
// lack. External ones may hang. Versions without STATUS get that of the newest.
func (d *Doctor) checkStatus(ctx context.Context) {
	for _, n := range d.examined {
		if n.list == nil {
			continue
		}
		list := *n.list
		list.CNIVersion = spec.Newest.String()
		for i := range list.Plugins {
			p := &list.Plugins[i]
			if n.invalid[i] || !d.builtIn(p.Type) || p.IPAM != "" && !d.builtIn(p.IPAM) {
				continue
			}
			r, err := d.Runner.Request(spec.Status, &list, p, chain.Target{})
			if err == nil {
				within, cancel := context.WithTimeout(ctx, askTime)
				_, err = d.Runner.Invoker.Invoke(within, p.Type, r)
				cancel()
			}
			if err != nil && errors.Is(err, os.ErrPermission) {
				d.skip("status of "+n.Name, err)
			} else if err != nil && spec.AsError(err).Code != spec.CodeConfig { // lint has reported that one
				f := d.find("status", "cni-exec status "+n.Name, nil, "network %s: %v", n.Name, hint.Line(err))
				f.Network, f.Code = n.Name, spec.AsError(err).Code
			}
		}
	}
}

// builtIn reports whether a plugin is one of this program, and would be run.
func (d *Doctor) builtIn(plugin string) bool {
	verbs, err := d.Runner.Invoker.Find(plugin)
	return err == nil && verbs != nil
}

// checkCache looks for entries that cannot be read.
func (d *Doctor) checkCache(context.Context) {
	for _, b := range d.inv.Broken {
		d.unlisted = true
		if err := b.Err(); errors.Is(err, os.ErrPermission) {
			d.skip("attachments", err)
		} else {
			file, remove := filepath.Join(d.inv.Cache.Dir, "results", b.Name()), "rm "
			if info, err := os.Lstat(file); err == nil && info.IsDir() {
				remove = "rm -r "
			}
			d.find("cache", remove+file+"    # if its container is gone", nil, "%v", err)
		}
	}
}

// checkStale looks for what is left of namespaces that are gone, and of an add that was killed.
func (d *Doctor) checkStale(context.Context) {
	var goneEntries, interrupted []*inventory.Entry
	for _, a := range d.inv.Entries {
		switch {
		case a.State == inventory.StateBusy:
		case a.Gone() && !d.alive(a.Attachment()):
			goneEntries = append(goneEntries, a)
		case a.Interrupted():
			interrupted = append(interrupted, a)
		}
	}
	name := func(a *inventory.Entry) string { return a.Attachment().String() }
	var gone, begun []string
	for _, a := range goneEntries {
		gone = append(gone, name(a))
	}
	for _, a := range interrupted {
		begun = append(begun, name(a))
	}
	if len(interrupted) > 0 {
		d.find("interrupted add", "cni-exec gc --all-networks --valid-live", nil, "%s whose add has ended before it was done: %s", tty.Plural(len(interrupted), "attachment"), tty.Several(begun)).
			split(interrupted, func(a *inventory.Entry) string { return name(a) + ": its add has ended before it was done" })
	}
	if len(gone) > 0 {
		d.find("stale attachments", "cni-exec gc --all-networks --valid-live", func(ctx context.Context) error {
			return d.Runner.DeleteStale(ctx, func(a spec.Attachment) bool { return slices.Contains(gone, a.String()) })
		}, "%s of a network namespace that is gone: %s", tty.Plural(len(gone), "attachment"), tty.Several(gone)).
			split(goneEntries, func(a *inventory.Entry) string { return name(a) + ": " + a.StateText() })
	}
	if d.unlisted {
		return
	}
	for _, n := range d.examined {
		pools, err := d.inv.Pools(n.Network)
		if err != nil {
			d.skip("leases of "+n.Name, err)
			continue
		}
		var stale []string
		for _, p := range pools {
			for _, a := range p.Stale {
				if !slices.ContainsFunc(n.Attached, func(e *inventory.Entry) bool { return e.Has(a.String()) }) && !d.leased(n.Network, a) {
					stale = append(stale, a.String())
				}
			}
		}
		if len(stale) > 0 {
			d.find("stale leases", "cni-exec gc "+n.Name+" --valid-live", nil,
				"network %s: %s of no attachment in %s: %s", n.Name, tty.Plural(len(stale), "lease"), d.inv.Cache.Dir, tty.Several(stale)).Network = n.Name
		}
	}
}

// search is that of the owners of a network. It is made where something seems to be stale.
func (d *Doctor) search(network string) *inventory.OwnerSearch {
	if s, done := d.searched[network]; done {
		return s
	}
	conf, entries := new(inventory.Conf), []*chain.Entry{}
	for _, n := range d.examined {
		if n.Name == network {
			conf = n.Conf
			for _, a := range n.Attached {
				entries = append(entries, a.Entry)
			}
		}
	}
	s, err := inventory.SearchOwners(network, conf, nil, entries, true)
	if err != nil {
		d.skip("what is stale of "+network, err)
	}
	d.searched[network] = s
	return s
}

// alive reports whether an attachment that seems to be stale is alive.
func (d *Doctor) alive(a spec.Attachment) bool { return d.search(a.Network).Alive(a) }

// leased reports whether a lease that seems to be stale is that of an attachment that is alive.
func (d *Doctor) leased(n *inventory.Network, addr netip.Addr) bool {
	s := d.search(n.Name)
	return s.Alive(s.Leases[addr])
}

// checkAttachments runs CHECK of the attachments that are alive. Those with the same fault are one
// finding.
func (d *Doctor) checkAttachments(ctx context.Context) {
	JudgeAll(ctx, d.inv, d.judgeOnce())
	unchecked := map[string]int{}
	faults := map[string][]*inventory.Entry{}
	for _, a := range d.inv.Entries {
		switch {
		case a.State == inventory.StateBusy:
			unchecked["a verb runs for the container"]++
		case a.State == inventory.StateUnknown:
			unchecked[a.Why]++
		case a.Unchecked != "":
			unchecked[a.Unchecked]++
		case a.Fault != nil && !slices.Contains(d.off, a.FaultText()):
			faults[a.FaultText()] = append(faults[a.FaultText()], a)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(unchecked)) {
		d.Untested = append(d.Untested, spec.Printable(fmt.Sprintf("CHECK of %s: %s", tty.Plural(unchecked[why], "attachment"), why)))
	}
	for _, a := range d.inv.Entries {
		if a.Fault == nil {
			continue
		}
		of := faults[a.FaultText()]
		delete(faults, a.FaultText())
		if len(of) > 0 {
			d.findFault(of)
		}
	}
}

// judgeOnce returns what runs CHECK of an attachment for doctor, which waits for none longer than
// checkTime. External plugins that have hung are not asked again.
func (d *Doctor) judgeOnce() func(context.Context, *inventory.Entry) (string, error) {
	hung := map[string]bool{}
	return func(ctx context.Context, a *inventory.Entry) (string, error) {
		var external []string
		for _, plugin := range a.Conf.Types() {
			if hung[plugin] {
				return "plugin " + plugin + " has not answered for another attachment", nil
			}
			if !d.builtIn(plugin) {
				external = append(external, plugin)
			}
		}
		within, cancel := context.WithTimeout(ctx, checkTime)
		defer cancel()
		unchecked, err := Judge(within, d.Runner, a.Entry)
		if err != nil && within.Err() != nil {
			for _, plugin := range external {
				hung[plugin] = true
			}
		}
		return unchecked, err
	}
}

// findFault adds the finding of attachments with the same fault.
func (d *Doctor) findFault(of []*inventory.Entry) {
	first := of[0]
	var names []string
	for _, a := range of {
		names = append(names, a.Attachment().String())
	}
	what := names[0] + ": " + first.FaultText()
	if len(of) > 1 {
		what = fmt.Sprintf("%s: %s: %s", tty.Plural(len(of), "attachment"), first.FaultText(), tty.Several(names))
	}
	if errors.Is(first.Fault, spec.ErrAnew) {
		var del []string
		for _, a := range of {
			del = append(del, fmt.Sprintf("cni-exec del %s --container-id %s -i %s    # and add it again", a.NetworkName, a.ContainerID, a.IfName))
		}
		d.find("attachment", strings.Join(del, "\n"), nil, "%s", what).each = faultsOf(of)
		return
	}
	repair := "cni-exec reload"
	switch same := func(is func(*inventory.Entry) string) bool {
		return !slices.ContainsFunc(of, func(a *inventory.Entry) bool { return is(a) != is(first) })
	}; {
	case same(func(a *inventory.Entry) string { return a.ContainerID }):
		repair += " " + first.ContainerID
	case same(func(a *inventory.Entry) string { return a.NetworkName }):
		repair += " " + first.NetworkName
	}
	d.find("attachment", repair, d.reloads(of), "%s", what).each = faultsOf(of)
}

// faultsOf are the findings of single attachments.
func faultsOf(of []*inventory.Entry) (each []Finding) {
	for _, a := range of {
		each = append(each, Fault(a.Attachment(), a.NetNSPath(), a.Fault))
	}
	return each
}

// reloads is the fix that restores attachments.
func (d *Doctor) reloads(of []*inventory.Entry) func(context.Context) error {
	return func(ctx context.Context) error {
		var entries []*chain.Entry
		for _, a := range of {
			now, err := d.Runner.Cache.Lookup(a.Attachment())
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			entries = append(entries, now)
		}
		return d.Restore(ctx, entries)
	}
}

// checkOrphans looks for links and elements that have an owner of which nothing is known.
func (d *Doctor) checkOrphans(context.Context) {
	if d.unlisted {
		return
	}
	known := map[string]bool{}
	for _, a := range d.inv.Entries {
		known[a.Key] = true
	}
	if d.inv.Links != nil {
		for _, l := range d.inv.Links.All {
			key := spec.LabelKey(l.Alias)
			a, _ := spec.LabelNames(l.Alias)
			switch {
			case key == "" || known[key]:
			case d.alive(a):
				f := d.find("unknown attachment", fmt.Sprintf("cni-exec doctor --cache-dir DIR    # that of its runtime, or `%s` if its container is gone", chain.DelCommand(a)), nil,
					"%s is of %s, which is not in %s, and leads to a network namespace that exists", l.Name, a, d.inv.Cache.Dir)
				f.Of(a, "")
			default:
				d.find("orphaned link", "ip link del "+l.Name, nil, "%s is of an attachment that is not in %s: %s", l.Name, d.inv.Cache.Dir, l.Alias).Of(a, "")
			}
		}
	}
	orphans := map[string]int{}
	for key, held := range d.rules {
		if !known[key] && (d.inv.Links == nil || d.inv.Links.ByKey[key] == nil) && !d.alive(held[0].Owner) {
			orphans[held[0].Owner.Network] += len(held)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(orphans)) {
		d.find("orphaned elements", "cni-exec gc "+name+" --valid-live", nil,
			"%s in table inet cnibox of attachments to %s that have neither a link nor an entry in %s", tty.Plural(orphans[name], "element"), name, d.inv.Cache.Dir).Network = name
	}
}
