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
	"sync"
	"time"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A Finding is something that keeps networks of this host from working, or may do so. check,
// status, gc, reload and boot report faults in the same form.
//
// The zero value of its severity is [lint.Fault].
//
// The four members that name an attachment are empty if the finding does not concern one, or it is
// not known. For a finding about several attachments see [Doctor.Documents].
type Finding struct {
	Severity    lint.Severity `json:"severity"`
	Check       string        `json:"check"`   // the checked part
	Where       string        `json:"where"`   // what is wrong; usually the name of a link, a file or an attachment
	Message     string        `json:"message"` // one line
	Repair      string        `json:"repair"`  // a command, or what to change; a line for each command
	Fixable     bool          `json:"fixable"` // --fix can repair it
	Code        int           `json:"code"`    // of an error of the specification; 0: none
	Network     string        `json:"network"`
	ContainerID string        `json:"containerID"`
	IfName      string        `json:"ifName"`
	NetNS       string        `json:"netns"`

	attachments []*inventory.Entry          // the attachments, if it concerns any
	repairs     []string                    // of each of these; nil: Repair is of all
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

// Judged returns the finding for what is known of an attachment, with the remedy for it. What is left of one whose
// namespace is gone, or whose ADD was killed, keeps addresses and ports from others.
func Judged(j *chain.Judgement, remedy hint.Remedy) Finding {
	f := Finding{Check: "attachment", Where: spec.Printable(j.Title()), Message: spec.Printable(hint.Text(j)), Repair: repair(remedy), Fixable: remedy.Reload, Code: codeOf(j)}
	f.SetAttachment(j.Attachment(), j.NetNSPath())
	if j.State == chain.StateGone || j.State == chain.StateInterrupted {
		f.Severity = lint.Risk
	}
	return f
}

// repair returns a remedy for a finding.
func repair(remedy hint.Remedy) string {
	return cmp.Or(strings.Join(remedy.Commands, "\n"), remedy.Text)
}

// codeOf returns the code of what is known of an attachment.
func codeOf(j *chain.Judgement) int {
	switch {
	case j.Err != nil:
		return spec.AsError(j.Err).Code
	case j.State == chain.StateGone:
		return spec.CodeNetNS
	}
	return spec.CodeCheck
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
	addrs     func() (map[uint32][]rtnl.Addr, error) // of the host's links, read once
	off       []string                               // what CHECK of each attachment reports about forwarding that is off
	ignoresRA bool                                   // a link of the host ignores router advertisements
	linted    []*lint.Finding
	Checks    int // number of checked parts
	Found     []Finding
	Fixed     []Finding                         // repaired by [Doctor.Fix]
	Untested  []string                          // with the reasons
	Undone    bool                              // of these, some could be tested by others, or later
	judged    []*chain.Judgement                // of the examined attachments, see judge; nil: before it
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

	NoProbe bool // send no packets

	Limit    time.Duration // of CHECK of an attachment, and STATUS of a plugin
	Remedies hint.Remedies

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
	{(*Doctor).checkCache, true}, {(*Doctor).checkKernel, true}, {(*Doctor).checkConfigurations, true}, {(*Doctor).checkConfigured, false}, {(*Doctor).checkStatus, false},
	{(*Doctor).checkRules, false}, {(*Doctor).checkForwarding, false},
	{(*Doctor).checkLocalnet, false}, {(*Doctor).checkReversePath, true}, {(*Doctor).checkRouters, false}, {(*Doctor).checkUplink, false}, {(*Doctor).checkMTU, false},
	{(*Doctor).checkPortMTU, false}, {(*Doctor).checkDuplicates, false}, {(*Doctor).checkNeighbours, false},
	{(*Doctor).checkForeign, false}, {(*Doctor).checkInside, false}, {(*Doctor).checkPolicy, false}, {(*Doctor).checkIsolated, false},
	{(*Doctor).checkListeners, false}, {(*Doctor).checkResolvers, false}, {(*Doctor).checkPlugins, true}, {(*Doctor).checkStale, false},
	{(*Doctor).checkLeases, true}, {(*Doctor).checkAttachments, false}, {(*Doctor).checkPackets, false}, {(*Doctor).checkOrphans, true},
}

// Examine examines everything, or what concerns the attachments of Host.Name.
func Examine(ctx context.Context, h Host) (*Doctor, error) {
	d := &Doctor{
		Host: h, searched: map[string]*inventory.OwnerSearch{},
		addrs: sync.OnceValues(func() (map[uint32][]rtnl.Addr, error) { return inventory.AskHost((*rtnl.Conn).AllAddrs) }),
	}
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
		d.Untested, d.Undone = append(d.Untested, spec.Printable(err.Error())), true
	}
	d.title = inventory.Titles(d.inv.Entries)
	d.lives = make(map[*inventory.Entry]bool, len(d.inv.Entries))
	for _, a := range d.inv.Entries {
		d.lives[a] = a.Alive()
	}
	networks := d.Networks(d.inv)
	if d.list = d.inv.Entries; h.Name != "" {
		var network *inventory.Network
		if network, d.list, err = d.inv.ByName(h.Name, networks); err != nil {
			return nil, err
		}
		networks = slices.DeleteFunc(networks, func(n *inventory.Network) bool {
			return n != network && !slices.ContainsFunc(d.list, func(a *inventory.Entry) bool { return a.NetworkName == n.Name })
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
	slices.SortStableFunc(d.Found, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) })
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
	f.Where, f.Message, f.Fixable, f.attachments = spec.Printable(cmp.Or(f.Where, f.Check)), spec.Printable(f.Message), f.fix != nil, attached
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
	d.Untested, d.Undone = append(d.Untested, check+": "+spec.Printable(err.Error())), true
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

// Faulty reports whether a finding is a fault.
func (d *Doctor) Faulty() bool {
	return slices.ContainsFunc(d.Found, func(f Finding) bool { return f.Severity == lint.Fault })
}

// Text has a line for each finding, "severity: where: what", with what to do in indented lines below it, and the number
// of findings at the end.
func (d *Doctor) Text() string {
	var out strings.Builder
	for _, f := range d.Fixed {
		fmt.Fprintf(&out, "fixed: %s: %s\n", f.Where, f.Message)
	}
	for _, f := range d.Found {
		fmt.Fprintf(&out, "%s: %s: %s\n", f.Severity, f.Where, f.Message)
		out.WriteString(hint.Below(strings.Split(f.Repair, "\n")))
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
		for i, a := range f.attachments {
			if f.repairs != nil {
				f.Repair = f.repairs[i]
			}
			f.Where = spec.Printable(d.title(a))
			f.SetAttachment(a.Attachment(), a.NetNSPath())
			all = append(all, f)
		}
	}
	return all
}

// checkConfigurations is lint; the mistakes in a file are one finding, about the gravest.
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
	counts, gravest := map[string]int{}, map[string]*lint.Finding{}
	for _, f := range found {
		if errors.Is(f.Unread, os.ErrPermission) {
			d.skip("configuration", f.Unread)
			continue
		}
		if counts[f.File]++; counts[f.File] == 1 || f.Severity < gravest[f.File].Severity {
			gravest[f.File] = f
		}
	}
	for _, file := range slices.Sorted(maps.Keys(counts)) {
		f := gravest[file]
		text := f.Message
		if n := counts[file]; n > 1 {
			text += fmt.Sprintf("; and %s more", tty.Plural(n-1, "mistake"))
		}
		d.add(Finding{Severity: f.Severity, Check: "configuration", Where: f.Place(), Message: text, Repair: "cni-exec lint " + file, Code: spec.CodeConfig})
	}
}

// checkConfigured looks for networks without a configuration that have attachments. Their verbs use that of the ADD.
func (d *Doctor) checkConfigured(context.Context) {
	for _, n := range d.examined {
		alive := slices.DeleteFunc(slices.Clone(n.Attached), func(a *inventory.Entry) bool { return !d.lives[a] })
		if n.File != "" || n.Embedded || len(alive) == 0 {
			continue
		}
		d.add(Finding{
			Severity: lint.Risk, Check: "configuration", Where: "network " + n.Name, Code: spec.CodeConfig,
			Message: fmt.Sprintf("no valid file in %s has it, so nothing more can be attached; what is attached goes by the configuration of its add: %s", d.ConfDir, d.titles(alive)),
			Repair:  "put its file back, or name the directory of its runtime with --conf-dir",
		}, alive...)
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
				within, cancel := context.WithTimeout(ctx, d.Limit)
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
			f := Finding{Severity: lint.Risk, Check: "cache", Message: b.Err().Error(), Repair: remove + file + " if its container is gone", Code: spec.CodeIO}
			if a, has := d.ownerOf(&b); len(has) > 0 {
				e := chain.EntryOf(a)
				e.NetNS = namedAs(a.ContainerID)
				f.Severity = lint.Fault // neither CHECK nor DEL knows what it has
				f.Message += fmt.Sprintf("; it is of %s, which has %s", e.Title(), tty.Several(has))
				f.Repair = d.readd(&inventory.Entry{Entry: e})
				f.Network, f.ContainerID, f.IfName = a.Network, a.ContainerID, a.IfName
			}
			d.add(f)
		}
	}
}

// namedAs returns the path of the named namespace from which a container ID was derived; empty: none.
func namedAs(id string) string {
	names, _ := os.ReadDir(sandbox.NetNSDir) // it may be missing
	for _, n := range names {
		if path := filepath.Join(sandbox.NetNSDir, n.Name()); chain.DerivedID(path) == id {
			return path
		}
	}
	return ""
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

// judge runs CHECK of the examined attachments, and leaves out those that are detached meanwhile.
func (d *Doctor) judge(ctx context.Context) {
	if d.judged != nil {
		return
	}
	d.list, d.judged = inventory.Judge(ctx, d.Runner, d.list, d.Limit)
}

// checkStale looks for the rest of attachments whose namespace is gone, and of a killed ADD.
func (d *Doctor) checkStale(ctx context.Context) {
	d.judge(ctx)
	var gone, interrupted []*inventory.Entry
	for i, a := range d.list {
		j := d.judged[i]
		switch {
		case j.State == chain.StateInterrupted:
			interrupted = append(interrupted, a)
		case j.State != chain.StateGone:
		case j.Holder != "":
			d.addJudged(j, a)
		case d.alive(a.Attachment()):
			j.Why += ", but " + d.search(a.NetworkName).Found[a.Attachment()].Alive
			d.addJudged(j, a)
		default:
			gone = append(gone, a)
		}
	}
	if len(interrupted) > 0 {
		d.add(Finding{Severity: lint.Risk, Check: "interrupted add", Where: d.titles(interrupted), Message: interrupted[0].StateText(),
			Repair: d.delOrGC(interrupted), Code: spec.CodeCheck}, interrupted...)
	}
	if len(gone) > 0 {
		text := "the network namespace is gone"
		if len(gone) == 1 {
			text = gone[0].StateText()
		}
		d.add(Finding{Severity: lint.Risk, Check: "stale attachments", Where: d.titles(gone), Message: text, Repair: d.delOrGC(gone),
			Code: spec.CodeNetNS, fix: func(ctx context.Context) error {
				return d.Runner.DeleteStale(ctx, func(a spec.Attachment) bool {
					return slices.ContainsFunc(gone, func(e *inventory.Entry) bool { return e.Attachment() == a })
				})
			}}, gone...)
	}
}

// readd returns the commands that delete an attachment, and add it again.
func (d *Doctor) readd(a *inventory.Entry) string {
	return repair(d.Remedies.For(&chain.Judgement{Entry: a.Entry, State: chain.StateFault, Err: spec.ErrNeedsAdd}, false))
}

// addJudged adds the finding about one attachment.
func (d *Doctor) addJudged(j *chain.Judgement, a *inventory.Entry) {
	f := Judged(j, d.Remedies.For(j, false))
	f.Check, f.Where = "stale attachments", d.title(a)
	d.add(f, a)
}

// delOrGC returns the command that deletes the rest of attachments.
func (d *Doctor) delOrGC(attached []*inventory.Entry) string {
	if len(attached) == 1 {
		return repair(d.Remedies.For(&chain.Judgement{Entry: attached[0].Entry, State: chain.StateGone}, false))
	}
	return "cni-exec gc" + d.Remedies.Flags
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
			d.add(Finding{Severity: lint.Risk, Check: "stale leases", Where: "network " + n.Name, Repair: "cni-exec gc " + n.Name, Code: spec.CodeCheck, Network: n.Name,
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

// checkAttachments reports the faults of attachments. Those with the same fault are one finding.
func (d *Doctor) checkAttachments(ctx context.Context) {
	d.judge(ctx)
	var untested []*chain.Judgement
	faults := map[string][]int{}
	var texts []string
	for i, j := range d.judged {
		switch {
		case j.State == chain.StateBusy || j.State == chain.StateNotTested:
			untested = append(untested, j)
			d.Undone = d.Undone || j.Undone()
		case j.State != chain.StateFault || flushed(j) || slices.Contains(d.off, hint.Reason(j.Err)):
		default:
			text := hint.Text(j)
			if faults[text] == nil {
				texts = append(texts, text)
			}
			faults[text] = append(faults[text], i)
		}
	}
	for _, line := range hint.NotTested(untested, func(e *chain.Entry) string { return d.title(&inventory.Entry{Entry: e}) }) {
		d.Untested = append(d.Untested, "CHECK of "+line)
	}
	for _, text := range texts {
		d.findFault(faults[text])
	}
}

// findFault adds the finding of attachments with the same fault, by their places in the list.
func (d *Doctor) findFault(places []int) {
	first := d.judged[places[0]]
	f := Finding{Check: "attachment", Message: hint.Text(first), Code: codeOf(first)}
	if d.Remedies.For(first, false).Reload {
		d.addReload(f, places)
		return
	}
	var attached []*inventory.Entry
	for _, i := range places {
		attached = append(attached, d.list[i])
		f.repairs = append(f.repairs, repair(d.Remedies.For(d.judged[i], false)))
	}
	f.Where, f.Repair = d.titles(attached), strings.Join(f.repairs, "\n")
	d.add(f, attached...)
}

// addReload adds a finding that reload repairs, about attachments by their places in the list.
func (d *Doctor) addReload(f Finding, places []int) {
	var attached []*inventory.Entry
	for _, i := range places {
		attached = append(attached, d.list[i])
	}
	same := func(value func(*inventory.Entry) string) bool {
		return !slices.ContainsFunc(attached, func(a *inventory.Entry) bool { return value(a) != value(attached[0]) })
	}
	f.Where, f.fix = d.titles(attached), d.reloads(attached)
	switch {
	case same(func(a *inventory.Entry) string { return a.ContainerID }):
		f.Repair = repair(d.Remedies.For(d.judged[places[0]], false))
	case same(func(a *inventory.Entry) string { return a.NetworkName }):
		f.Repair = repair(d.Remedies.Reload(attached[0].NetworkName))
	default:
		f.Repair = repair(d.Remedies.Reload(""))
	}
	d.add(f, attached...)
}

// flushed reports whether CHECK has found that another program has deleted all rules of cnibox.
func flushed(j *chain.Judgement) bool {
	var missing *nft.MissingError
	return errors.As(j.Err, &missing) && missing.Base
}

// checkRules looks for attachments that have no rules any more since another program has deleted all of them.
func (d *Doctor) checkRules(ctx context.Context) {
	d.judge(ctx)
	var places []int
	for i, j := range d.judged {
		if flushed(j) {
			places = append(places, i)
		}
	}
	if len(places) > 0 {
		d.addReload(Finding{Check: "rules", Message: "the rules of cnibox were deleted, as by nft flush ruleset", Code: spec.CodeCheck}, places)
	}
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
				d.add(Finding{Severity: lint.Risk, Check: "unknown attachment", Where: l.Name, Code: spec.CodeUnknown, Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName,
					Message: fmt.Sprintf("it is of %s, which is not in %s, and leads to a network namespace that exists", chain.EntryOf(a).Title(), d.inv.Cache.Dir),
					Repair:  fmt.Sprintf("run doctor with the --cache-dir of its runtime, or `%s` if its container is gone", chain.EntryOf(a).DelCommand())})
			default:
				d.add(Finding{Severity: lint.Risk, Check: "orphaned link", Where: l.Name, Code: spec.CodeUnknown, Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName,
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
		d.add(Finding{Severity: lint.Risk, Check: "orphaned elements", Where: "network " + name, Code: spec.CodeUnknown, Network: name, Repair: "cni-exec gc " + name,
			Message: fmt.Sprintf("%s in tables cnibox of attachments that have neither a link nor an entry in %s", tty.Plural(orphans[name], "element"), d.inv.Cache.Dir)})
	}
}
