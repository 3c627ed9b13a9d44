// Package doctor finds the faults that keep the networks of a host from working, and repairs some.
package doctor

import (
	"cmp"
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
	"cnibox/ipam"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A Finding is something that keeps networks of this host from working, or may do so. check,
// status, gc, reload and boot report faults in the same form.
//
// The four members that name an attachment are empty if the finding does not concern one, or it is
// not known. For a finding about several attachments see [Doctor.Documents].
type Finding struct {
	Check       string `json:"check"`   // the checked part
	Where       string `json:"where"`   // what is wrong; usually the name of a link, a file or an attachment
	Message     string `json:"message"` // one line
	Repair      string `json:"repair"`  // a command, or what to change; a line for each command
	Own         bool   `json:"own"`     // --fix can repair it
	Code        int    `json:"code"`    // of an error of the specification; 0: none
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	NetNS       string `json:"netns"`

	attachments []*inventory.Entry          // the attachments, if it concerns any
	fix         func(context.Context) error // nil: not a fault of cnibox's own state
}

// SetAttachment sets the attachment of a finding.
func (f *Finding) SetAttachment(a spec.Attachment, netns string) {
	f.Network, f.ContainerID, f.IfName, f.NetNS = a.Network, a.ContainerID, a.IfName, netns
}

// SetError sets the error of a finding.
func (f *Finding) SetError(err error) {
	f.Code, f.Message = spec.AsError(err).Code, spec.Printable(hint.Reason(err))
}

// Fault returns the finding for what CHECK or RESTORE has found, with its repair.
func Fault(e *chain.Entry, err error) Finding {
	f := Finding{Check: "attachment", Where: e.Title(), Repair: "cni-exec reload " + e.ContainerID, Own: true}
	if errors.Is(err, spec.ErrNeedsAdd) {
		f.Repair, f.Own = chain.DelCommand(e.Attachment())+"    # and add it again", false
	}
	f.SetAttachment(e.Attachment(), e.NetNSPath())
	f.SetError(err)
	return f
}

// A Doctor examines a host: the kernel, what other programs have configured, the networks and their
// attachments. It changes nothing; only [Doctor.Fix] does.
type Doctor struct {
	Host
	inv       *inventory.Inventory
	list      []*inventory.Entry            // the examined ones: all, or those of Host.Name
	lives     map[*inventory.Entry]bool     // those of all that have a network namespace, as far as known
	title     func(*inventory.Entry) string // formats an attachment for messages
	rules     map[string][]nft.Element      // by the owner's key; nil: not read
	unlisted  bool                          // the cache has unreadable entries, so what seems to have no owner may have one
	examined  []*examined
	uplinks   []*rtnl.Link
	blockers  []nft.Blocker
	off       []string // what CHECK of each attachment reports about forwarding that is off
	hung      bool     // firewalld does not answer
	ignoresRA bool     // a link of the host ignores router advertisements
	linted    []*lint.Finding
	Checks    int // number of checked parts
	Found     []Finding
	Fixed     []Finding                         // repaired by [Doctor.Fix]
	Untested  []string                          // with the reasons
	searched  map[string]*inventory.OwnerSearch // by network
}

// An examined network is a network with what its plugins report about its configuration.
type examined struct {
	*inventory.Network
	list      *chain.List // nil: its configuration is gone
	resources spec.Resources
	invalid   map[int]bool // plugins for which lint reports everything that STATUS would
}

// A Host has what a doctor needs to know of the call.
type Host struct {
	Runner        *chain.Runner
	Plugins       *chain.Describer
	Applets       applet.Table
	Getenv        func(string) string
	ConfDir, Path string // as in the flags
	Name          string // of a network or a container, to whose attachments the examination is limited; empty: all

	Networks func(*inventory.Inventory) []*inventory.Network // prints nothing
	Lint     func(dir string) ([]*lint.Finding, error)
	Restore  func(context.Context, []*chain.Entry) error // restores attachments with a fault
}

// A check examines one part.
type check struct {
	run  func(*Doctor, context.Context)
	host bool // it does not concern attachments, and is skipped if only some are examined
}

// checks are all checks, in the order of their findings.
var checks = []check{
	{(*Doctor).checkCache, true}, {(*Doctor).checkKernel, true}, {(*Doctor).checkConfigurations, true}, {(*Doctor).checkStatus, false},
	{(*Doctor).checkBlockers, false}, {(*Doctor).checkForwarding, false}, {(*Doctor).checkBridgeNetfilter, false},
	{(*Doctor).checkLocalnet, false}, {(*Doctor).checkReversePath, true}, {(*Doctor).checkRouters, false}, {(*Doctor).checkUplink, false}, {(*Doctor).checkMTU, false},
	{(*Doctor).checkPortMTU, false}, {(*Doctor).checkDuplicates, false}, {(*Doctor).checkNeighbours, false},
	{(*Doctor).checkForeign, false}, {(*Doctor).checkInside, false}, {(*Doctor).checkPolicy, false}, {(*Doctor).checkIsolated, false},
	{(*Doctor).checkListeners, false}, {(*Doctor).checkPublished, false}, {(*Doctor).checkResolvers, false}, {(*Doctor).checkPlugins, true}, {(*Doctor).checkStale, false},
	{(*Doctor).checkLeases, true}, {(*Doctor).checkAttachments, false}, {(*Doctor).checkOrphans, true},
}

// Examine examines everything, or what concerns the attachments of Host.Name.
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
	d.title = inventory.Titles(d.inv.Entries)
	d.lives = make(map[*inventory.Entry]bool, len(d.inv.Entries))
	for _, a := range d.inv.Entries {
		d.lives[a] = a.Alive()
	}
	networks := d.Networks(d.inv)
	if d.list = d.inv.Entries; h.Name != "" {
		if d.list, err = d.inv.ByName(h.Name, networks); err != nil {
			return nil, err
		}
		networks = slices.DeleteFunc(networks, func(n *inventory.Network) bool {
			return n.Name != h.Name && !slices.ContainsFunc(d.list, func(a *inventory.Entry) bool { return a.NetworkName == n.Name })
		})
	}
	d.readRules()
	d.readUplinks()
	d.readNetworks(networks)
	for _, c := range checks {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if c.host && h.Name != "" {
			continue
		}
		c.run(d, ctx)
		d.Checks++
	}
	return d, nil
}

// readRules reads the elements of attachments in the rule set.
func (d *Doctor) readRules() {
	held, err := nft.Open(netns.Host()).Elements()
	if err != nil {
		d.skip("rules", err)
		return
	}
	d.rules = map[string][]nft.Element{}
	for _, e := range held {
		d.rules[e.OwnerKey()] = append(d.rules[e.OwnerKey()], e)
	}
}

// add adds a finding about some attachments, or none. One with a fix concerns cnibox's own state.
func (d *Doctor) add(f Finding, attached ...*inventory.Entry) {
	f.Where, f.Message, f.Own, f.attachments = spec.Printable(cmp.Or(f.Where, f.Check)), spec.Printable(f.Message), f.fix != nil, attached
	if len(attached) == 1 {
		f.SetAttachment(attached[0].Attachment(), attached[0].NetNSPath())
	}
	d.Found = append(d.Found, f)
}

// titles formats the names of attachments, of which it shows only the first few.
func (d *Doctor) titles(attached []*inventory.Entry) string {
	var names []string
	for _, a := range attached {
		names = append(names, d.title(a))
	}
	return tty.Several(names)
}

// skip records what could not be checked.
func (d *Doctor) skip(check string, err error) {
	d.Untested = append(d.Untested, check+": "+spec.Printable(err.Error()))
}

// readNetworks asks the plugins of each network for the resources they use.
func (d *Doctor) readNetworks(networks []*inventory.Network) {
	lists, _ := chain.Lists(d.ConfDir) // lint reports what is wrong with the others
	for _, n := range networks {
		e := &examined{Network: n, invalid: map[int]bool{}}
		if i := slices.IndexFunc(lists, func(l *chain.List) bool { return l.Name == n.Name }); i >= 0 {
			e.list = lists[i]
			for j := range e.list.Plugins {
				p := &e.list.Plugins[j]
				r, err := d.Runner.Request(spec.Status, e.list, p, chain.RuntimeConf{})
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

// alive reports whether the network has a live attachment.
func (e *examined) alive() bool { return slices.ContainsFunc(e.Attached, (*inventory.Entry).Alive) }

// Fix repairs cnibox's own state, and examines the host again. It also repairs faults that only
// show then, such as those after the first fault of a CHECK.
func (d *Doctor) Fix(ctx context.Context) (*Doctor, error) {
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

// has reports whether the doctor has a finding.
func (d *Doctor) has(f Finding) bool {
	return slices.ContainsFunc(d.Found, func(o Finding) bool { return o.Check == f.Check && o.Where == f.Where && o.Message == f.Message })
}

// treatOnce repairs cnibox's own state, examines the host again, and records what was fixed.
func (d *Doctor) treatOnce(ctx context.Context) (*Doctor, error) {
	for _, f := range d.Found {
		if f.fix == nil {
			continue
		}
		if err := f.fix(ctx); err != nil {
			d.Runner.Warn("%s: %v", f.Where, hint.Line(err))
		}
	}
	after, err := Examine(ctx, d.Host)
	if err != nil {
		return nil, err
	}
	after.Fixed = d.Fixed
	for _, f := range d.Found {
		if f.fix != nil && !after.has(f) {
			after.Fixed = append(after.Fixed, f)
		}
	}
	return after, nil
}

// Text has a line for each finding, "where: what: what to do", and their number at the end.
func (d *Doctor) Text() string {
	var out strings.Builder
	for _, f := range d.Fixed {
		fmt.Fprintf(&out, "fixed: %s: %s\n", f.Where, f.Message)
	}
	for _, f := range d.Found {
		fmt.Fprintf(&out, "%s: %s: %s\n", f.Where, f.Message, spec.Printable(strings.ReplaceAll(f.Repair, "\n", "; ")))
	}
	fmt.Fprintf(&out, "%s, %s", tty.Plural(d.Checks, "check"), tty.Plural(len(d.Found), "finding"))
	if n := len(d.Untested); n > 0 {
		fmt.Fprintf(&out, ", %d not tested", n)
	}
	out.WriteByte('\n')
	return out.String()
}

// Documents returns findings for JSON: it splits one about several attachments into one for each.
func (d *Doctor) Documents(found []Finding) []Finding {
	all := []Finding{}
	for _, f := range found {
		if len(f.attachments) < 2 {
			all = append(all, f)
			continue
		}
		for _, a := range f.attachments {
			f.Where = spec.Printable(d.title(a))
			f.SetAttachment(a.Attachment(), a.NetNSPath())
			all = append(all, f)
		}
	}
	return all
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
	counts, first := map[string]int{}, map[string]*lint.Finding{}
	for _, f := range found {
		if errors.Is(f.Unread, os.ErrPermission) {
			d.skip("configuration", f.Unread)
			continue
		}
		if counts[f.File]++; counts[f.File] == 1 {
			first[f.File] = f
		}
	}
	for _, file := range slices.Sorted(maps.Keys(counts)) {
		f := first[file]
		text := f.Message
		if n := counts[file]; n > 1 {
			text += fmt.Sprintf("; and %s more", tty.Plural(n-1, "mistake"))
		}
		d.add(Finding{Check: "configuration", Where: f.Place(), Message: text, Repair: "cni-exec lint " + file, Code: spec.CodeConfig})
	}
}

// checkStatus runs STATUS of the built-in plugins, which reports what the kernel and the host lack.
// External plugins may hang. For versions without STATUS it runs that of the newest.
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
			r, err := d.Runner.Request(spec.Status, &list, p, chain.RuntimeConf{})
			if err == nil {
				within, cancel := context.WithTimeout(ctx, askTime)
				_, err = d.Runner.Invoker.Invoke(within, p.Type, r)
				cancel()
			}
			if err != nil && errors.Is(err, os.ErrPermission) {
				d.skip("status of "+n.Name, err)
			} else if err != nil && spec.AsError(err).Code != spec.CodeConfig { // lint has reported it
				d.add(Finding{Check: "status", Where: "network " + n.Name, Message: hint.Line(err), Repair: "cni-exec status " + n.Name,
					Code: spec.AsError(err).Code, Network: n.Name})
			}
		}
	}
}

// builtIn reports whether a plugin is built in, and would run.
func (d *Doctor) builtIn(plugin string) bool {
	builtIn, err := d.Runner.Invoker.Find(plugin)
	return err == nil && builtIn != nil
}

// checkCache looks for unreadable entries.
func (d *Doctor) checkCache(ctx context.Context) {
	for _, b := range d.inv.Broken {
		d.unlisted = true
		if err := b.Err(); errors.Is(err, os.ErrPermission) {
			d.skip("attachments", err)
		} else {
			file, remove := filepath.Join(d.inv.Cache.Dir, "results", b.Name()), "rm "
			info, err := os.Lstat(file)
			dir := err == nil && info.IsDir()
			if dir {
				remove = "rm -r "
			}
			f := Finding{Check: "cache", Message: b.Err().Error(), Repair: remove + file + " if its container is gone", Code: spec.CodeIO}
			if a, has := d.ownerOf(&b); len(has) > 0 {
				f.Message += fmt.Sprintf("; it is of %s, which has %s", chain.EntryOf(a).Title(), tty.Several(has))
				f.Repair = chain.DelCommand(a) + ", and add it again"
				if !dir { // a file cannot replace a directory
					d.offerRebuild(ctx, &f, a)
				}
				f.Network, f.ContainerID, f.IfName = a.Network, a.ContainerID, a.IfName
			}
			d.add(f)
		}
	}
}

// ownerOf returns the attachment of a broken entry, by the labels of links, the rule set and the
// leases, and what it has there; nothing: not found.
func (d *Doctor) ownerOf(b *chain.Broken) (owner spec.Attachment, has []string) {
	note := func(a spec.Attachment, format string, args ...any) {
		if b.Of(a) {
			owner, has = a, append(has, fmt.Sprintf(format, args...))
		}
	}
	if d.inv.Links != nil {
		for _, l := range d.inv.Links.All {
			if a, complete := spec.LabelNames(l.Alias); complete {
				note(a, "link %s", l.Name)
			}
		}
	}
	for _, n := range d.examined {
		if dir := n.Conf.Leases(); dir != "" {
			leased, err := ipam.ReadLeases(dir, n.Name)
			if err != nil {
				d.skip("leases of "+n.Name, err)
			}
			for _, l := range leased {
				note(spec.Attachment{Network: n.Name, ContainerID: l.Owner.ContainerID, IfName: l.Owner.IfName}, "lease %s", l.Addr)
			}
		}
	}
	for _, held := range d.rules {
		if len(held) > 0 {
			note(held[0].Owner(), "%s in tables cnibox", tty.Plural(len(held), "element"))
		}
	}
	return owner, has
}

// checkStale looks for the rest of attachments whose namespace is gone, and of a killed ADD.
func (d *Doctor) checkStale(context.Context) {
	var gone, interrupted []*inventory.Entry
	for _, a := range d.list {
		switch {
		case a.State == inventory.StateBusy:
		case a.Gone() && !d.alive(a.Attachment()):
			gone = append(gone, a)
		case a.Interrupted():
			interrupted = append(interrupted, a)
		}
	}
	if len(interrupted) > 0 {
		d.add(Finding{Check: "interrupted add", Where: d.titles(interrupted), Message: "the add has ended before it was done",
			Repair: delOrGC(interrupted), Code: spec.CodeCheck}, interrupted...)
	}
	if len(gone) > 0 {
		d.add(Finding{Check: "stale attachments", Where: d.titles(gone), Message: "the network namespace is gone", Repair: delOrGC(gone),
			Code: spec.CodeNetNS, fix: func(ctx context.Context) error {
				return d.Runner.DeleteStale(ctx, func(a spec.Attachment) bool {
					return slices.ContainsFunc(gone, func(e *inventory.Entry) bool { return e.Attachment() == a })
				})
			}}, gone...)
	}
}

// delOrGC returns the command that deletes the rest of attachments.
func delOrGC(attached []*inventory.Entry) string {
	if len(attached) == 1 {
		return chain.DelCommand(attached[0].Attachment())
	}
	return "cni-exec gc --all-networks --valid-live"
}

// checkLeases looks for leases without an attachment.
func (d *Doctor) checkLeases(context.Context) {
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
				if !slices.ContainsFunc(n.Attached, func(e *inventory.Entry) bool { return e.HasAddr(a.String()) }) && !d.leased(n.Network, a) {
					stale = append(stale, a.String())
				}
			}
		}
		if len(stale) > 0 {
			d.add(Finding{Check: "stale leases", Where: "network " + n.Name, Repair: "cni-exec gc " + n.Name + " --valid-live", Code: spec.CodeCheck, Network: n.Name,
				Message: fmt.Sprintf("%s of no attachment in %s: %s", tty.Plural(len(stale), "lease"), d.inv.Cache.Dir, tty.Several(stale))})
		}
	}
}

// search returns the search for the owners of a network. It runs only if something seems to be
// stale.
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

// leased reports whether a lease that seems to be stale belongs to a live attachment.
func (d *Doctor) leased(n *inventory.Network, addr netip.Addr) bool {
	s := d.search(n.Name)
	return s.Alive(s.Leases[addr])
}

// checkAttachments runs CHECK of the live attachments. Those with the same fault are one finding.
func (d *Doctor) checkAttachments(ctx context.Context) {
	d.list = JudgeAll(ctx, d.inv.Cache, d.list, d.judgeOnce())
	unchecked := map[string]int{}
	faults := map[string][]*inventory.Entry{}
	for _, a := range d.list {
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
	for _, a := range d.list {
		if a.Fault == nil {
			continue
		}
		attached := faults[a.FaultText()]
		delete(faults, a.FaultText())
		if len(attached) > 0 {
			d.findFault(attached)
		}
	}
}

// judgeOnce returns a function that runs CHECK of an attachment for doctor, for at most checkTime.
// It does not call external plugins again that have hung.
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
func (d *Doctor) findFault(attached []*inventory.Entry) {
	first := attached[0]
	f := Finding{Check: "attachment", Where: d.titles(attached), Message: first.FaultText(), Code: spec.AsError(first.Fault).Code}
	if errors.Is(first.Fault, spec.ErrNeedsAdd) {
		f.Message += ", which reload cannot restore: del and add"
		var del []string
		for _, a := range attached {
			del = append(del, chain.DelCommand(a.Attachment()))
		}
		f.Repair = strings.Join(del, "\n")
		d.add(f, attached...)
		return
	}
	f.Repair, f.fix = "cni-exec reload", d.reloads(attached)
	switch same := func(value func(*inventory.Entry) string) bool {
		return !slices.ContainsFunc(attached, func(a *inventory.Entry) bool { return value(a) != value(first) })
	}; {
	case same(func(a *inventory.Entry) string { return a.ContainerID }):
		f.Repair += " " + d.inv.Operand(first)
	case same(func(a *inventory.Entry) string { return a.NetworkName }):
		f.Repair += " " + first.NetworkName
	}
	d.add(f, attached...)
}

// reloads returns the fix that restores attachments.
func (d *Doctor) reloads(attached []*inventory.Entry) func(context.Context) error {
	return func(ctx context.Context) error {
		var entries []*chain.Entry
		for _, a := range attached {
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

// checkOrphans looks for links and elements whose owner is not known.
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
				d.add(Finding{Check: "unknown attachment", Where: l.Name, Code: spec.CodeUnknown, Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName,
					Message: fmt.Sprintf("it is of %s, which is not in %s, and leads to a network namespace that exists", chain.EntryOf(a).Title(), d.inv.Cache.Dir),
					Repair:  fmt.Sprintf("cni-exec doctor --cache-dir DIR with that of its runtime, or `%s` if its container is gone", chain.DelCommand(a))})
			default:
				d.add(Finding{Check: "orphaned link", Where: l.Name, Code: spec.CodeUnknown, Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName,
					Message: fmt.Sprintf("it is of an attachment that is not in %s: %s", d.inv.Cache.Dir, l.Alias), Repair: "ip link del " + l.Name})
			}
		}
	}
	orphans := map[string]int{}
	for key, held := range d.rules {
		if !known[key] && (d.inv.Links == nil || d.inv.Links.ByKey[key] == nil) && !d.alive(held[0].Owner()) {
			orphans[held[0].Owner().Network] += len(held)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(orphans)) {
		d.add(Finding{Check: "orphaned elements", Where: "network " + name, Code: spec.CodeUnknown, Network: name, Repair: "cni-exec gc " + name + " --valid-live",
			Message: fmt.Sprintf("%s in tables cnibox of attachments that have neither a link nor an entry in %s", tty.Plural(orphans[name], "element"), d.inv.Cache.Dir)})
	}
}
