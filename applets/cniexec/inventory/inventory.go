// Package inventory lists what is attached on a host, whichever runtime attached it. It states facts; whether they are right is for CHECK.
package inventory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An Inventory lists the attachments of this host, of all runtimes: the entries of libcni's cache,
// whether their namespaces exist, and the links of the host. It states facts; CHECK judges them.
// [New] makes one.
//
// Making one changes nothing, takes no lock and starts no plugin, so it does not wait for an ADD; it
// enters namespaces only if one seems gone. A verb that changes something reads again under the
// lock.
type Inventory struct {
	Entries []*Entry // sorted by network, name, container and interface
	Broken  []chain.Broken
	Unread  []error // why something was not read
	Now     time.Time
	Uptime  time.Duration // of the host

	Links *hostLinks       // nil: not read
	confs map[string]*Conf // by text: most attachments of a network have the same
	Cache *chain.Cache

	plugins *chain.Describer
}

// An Entry is one attachment: an entry of the cache and what is known of it.
type Entry struct {
	*chain.Entry
	Key    string       // [spec.Attachment.Key]
	Conf   *Conf        // of its ADD
	Parsed *spec.Result // interfaces and addresses; empty: missing or unreadable
	Since  time.Time    // when the entry was written; zero: unknown, as without a clock
	Ports  []spec.Port  // of the capability, and with ReadHolds also those that plugins have published

	// Set by ReadHolds:
	Holds    []chain.Held
	HoldsErr error // why it is not known what plugins hold

	// Set by ReadStates:
	HostLink string // host-side veth, or another link that the plugin created on the host; empty: none
	linkless bool   // the host-side link is missing, and so is its peer in the container
	State    string
	Why      string // why it is gone, unknown or busy; empty: not known

	// The result of CHECK, if it was run:
	Verdict   string // empty: CHECK has no result
	Fault     error  // the fault that it has found
	Unchecked string // why it has no result, though it was to run
}

// Titles is [chain.Titles].
func Titles(list []*Entry) func(*Entry) string {
	entries := make([]*chain.Entry, len(list))
	for i, a := range list {
		entries[i] = a.Entry
	}
	title := chain.Titles(entries)
	return func(a *Entry) string { return title(a.Entry) }
}

// IsIn reports whether the path of the attachment's namespace leads to ns.
func (a *Entry) IsIn(ns netns.ID) bool {
	id, err := netns.IDAt(a.NetNSPath())
	return err == nil && id == ns
}

// Runtime guesses the runtime that made the attachment, by the names that runtimes use; empty:
// unknown. Entries of this program have the boot's ID; the paths are those of containerd
// (cni-UUID), podman (netns-UUID) and CRI-O (UUID).
func (a *Entry) Runtime() string {
	base := filepath.Base(a.NetNSPath())
	switch {
	case strings.HasPrefix(a.ContainerID, chain.RunPrefix):
		return "cni-exec run"
	case a.BootID != "":
		return "cni-exec"
	case strings.HasPrefix(a.ContainerID, chain.CnitoolPrefix):
		return "cnitool"
	case isUUID(strings.TrimPrefix(base, "cni-")) && strings.HasPrefix(base, "cni-"):
		return "containerd"
	case isUUID(strings.TrimPrefix(base, "netns-")) && strings.HasPrefix(base, "netns-"):
		return "podman"
	case isUUID(base):
		return "cri-o"
	}
	return ""
}

// isUUID reports whether s has the form of RFC 9562, section 4.
func isUUID(s string) bool {
	return len(s) == 36 && strings.Count(s, "-") == 4 && strings.Trim(strings.ToLower(s), "0123456789abcdef-") == ""
}

// Addresses returns those of the interface, in the order of the result.
func (a *Entry) Addresses() (list []netip.Prefix) {
	for _, ip := range a.Parsed.Addresses(a.IfName, nil) {
		list = append(list, ip.Address)
	}
	return list
}

// MAC returns that of the interface in the container; empty: the result does not have it, or the
// interface is gone.
func (a *Entry) MAC() string {
	if a.linkless || a.State == chain.StateGone && a.HostLink == "" {
		return ""
	}
	for _, i := range a.Parsed.Interfaces {
		if i.Name == a.IfName && i.Sandbox != "" {
			return i.MAC
		}
	}
	return ""
}

// Conf reads a configuration, and asks the plugins about it, once for each text.
func (v *Inventory) Conf(doc []byte) *Conf {
	c := v.confs[string(doc)]
	if c == nil {
		c = readConf(doc)
		c.Use = v.plugins.Uses(doc)
		v.confs[string(doc)] = c
	}
	return c
}

// ReadHolds asks the plugins of attachments what they hold for these.
func (v *Inventory) ReadHolds(ctx context.Context, list []*Entry) {
	s := session.NewForMany()
	defer s.Close()
	each := (len(list) + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for part := range slices.Chunk(list, max(each, 1)) {
		wg.Go(func() {
			own := s.Branch()
			defer own.Close()
			for _, a := range part {
				a.readHolds(ctx, own, v.plugins)
			}
		})
	}
	wg.Wait()
}

// readHolds is ReadHolds for one.
func (a *Entry) readHolds(ctx context.Context, s *session.Session, plugins *chain.Describer) {
	a.Holds, a.HoldsErr = plugins.Holds(ctx, s, a.Entry)
	for _, h := range a.Holds {
		switch data := h.Data.(type) {
		case spec.Port:
			if !slices.Contains(a.Ports, data) {
				a.Ports = append(a.Ports, data)
			}
		case spec.HostLink:
			if !a.linkless {
				a.HostLink = cmp.Or(a.HostLink, data.Name)
			}
		}
	}
}

// Publishing returns the attachments that may have ports in addition to those of the capability.
func Publishing(list []*Entry) (some []*Entry) {
	for _, a := range list {
		if a.Conf.Publishes {
			some = append(some, a)
		}
	}
	return some
}

// HeldLink returns the link on the host to which the interface is connected, as plugins report it;
// empty: none.
func (a *Entry) HeldLink() (name string) {
	for _, h := range a.Holds {
		if l, ok := h.Data.(spec.HostLink); ok {
			name = cmp.Or(name, l.On())
		}
	}
	return name
}

// New reads the cache, and looks at the namespace of each entry and at the links of the host. The
// error is that of an unreadable cache.
func New(cache *chain.Cache, plugins *chain.Describer) (*Inventory, error) {
	v := Empty(cache, plugins)
	listed := make(chan struct{}) // reading links takes as long as reading files
	go func() {
		v.ReadHost()
		close(listed)
	}()
	entries, broken, err := cache.List()
	v.Broken = broken
	for _, e := range entries {
		v.Entries = append(v.Entries, v.Read(e))
	}
	<-listed
	if err != nil {
		return nil, err
	}
	v.ReadStates(v.Entries)
	v.Recheck(v.ReadHost)
	v.searchGone()
	v.Sort()
	return v, nil
}

// Sort sorts the attachments.
func (v *Inventory) Sort() {
	slices.SortStableFunc(v.Entries, func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.NetworkName, b.NetworkName), cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
}

// Empty returns an inventory without attachments and links. It is for verbs that need few entries,
// which they read themselves.
func Empty(cache *chain.Cache, plugins *chain.Describer) *Inventory {
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info) // cannot fail
	uptime := time.Duration(info.Uptime+1) * time.Second
	return &Inventory{Now: time.Now(), Uptime: uptime, Cache: cache, plugins: plugins, confs: map[string]*Conf{}}
}

// Of returns an inventory of entries alone, see [Empty].
func Of(cache *chain.Cache, plugins *chain.Describer, entries []*chain.Entry) *Inventory {
	v := Empty(cache, plugins)
	for _, e := range entries {
		v.Entries = append(v.Entries, v.Read(e))
	}
	return v
}

// Read decodes an entry.
func (v *Inventory) Read(e *chain.Entry) *Entry {
	a := &Entry{Entry: e, Key: e.Attachment().Key(), Conf: v.Conf(e.Config), Parsed: e.BriefResult()}
	if raw := e.CapabilityArgs[spec.CapPorts]; raw != nil && a.Conf.publishes() {
		_ = json.Unmarshal(raw, &a.Ports) // a plugin has refused anything else than a list
	}
	for i := range a.Ports {
		a.Ports[i] = a.Ports[i].Normal()
	}
	a.Ports = slices.DeleteFunc(a.Ports, func(p spec.Port) bool { return p.HostPort == 0 })
	if info, err := os.Lstat(e.File()); err == nil {
		a.Since = info.ModTime()
	}
	return a
}

// A hostLinks is the links of the host, listed once.
type hostLinks struct {
	All     []rtnl.Link
	ByName  map[string]*rtnl.Link
	ByIndex map[uint32]*rtnl.Link
	ByKey   map[string]*rtnl.Link // by the attachment's key in the alias
}

// ReadHost reads the links of the host.
func (v *Inventory) ReadHost() {
	var err error
	v.Unread = nil
	if v.Links, err = ListLinks(); err != nil {
		v.Unread = append(v.Unread, err)
	}
}

// ListLinks lists the links of the host.
func ListLinks() (*hostLinks, error) {
	all, err := AskHost((*rtnl.Conn).Links)
	if err != nil {
		return nil, err
	}
	return IndexLinks(all), nil
}

// AskHost asks the kernel about the host's network namespace.
func AskHost[T any](ask func(*rtnl.Conn) (T, error)) (answer T, err error) {
	conn, err := rtnl.Dial(netns.Host())
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	return ask(conn)
}

// IndexLinks indexes a list of links.
func IndexLinks(all []rtnl.Link) *hostLinks {
	h := &hostLinks{All: all, ByName: make(map[string]*rtnl.Link, len(all)), ByIndex: make(map[uint32]*rtnl.Link, len(all)), ByKey: make(map[string]*rtnl.Link, len(all))}
	for i := range all {
		l := &all[i]
		h.ByName[l.Name], h.ByIndex[l.Index] = l, l
		// The IFB of a limit has the label too. It counts only if no other link has it.
		if key := spec.LabelKey(l.Alias); key != "" && (l.Kind != "ifb" || h.ByKey[key] == nil) {
			h.ByKey[key] = l
		}
	}
	return h
}

// ReadStates fills in the state and the host-side link of attachments. One is busy while a verb is at
// work for its container, whatever its namespace is.
func (v *Inventory) ReadStates(list []*Entry) {
	for _, a := range list {
		a.State, a.Why = a.QuickNamespace()
		if a.Interrupted() {
			a.State, a.Why = chain.StateInterrupted, ""
		}
		if v.Cache.Running(a.ContainerID) {
			a.State, a.Why = chain.StateBusy, ""
		}
		v.findHostLink(a)
	}
}

// Judge is [chain.Runner.Judge] for some attachments, and records in each what it has found. It returns
// the list without those that were detached meanwhile, and the judgements in the same order.
func Judge(ctx context.Context, runner *chain.Runner, list []*Entry, limit time.Duration) (rest []*Entry, found []*chain.Judgement) {
	entries := make([]*chain.Entry, len(list))
	for i, a := range list {
		entries[i] = a.Entry
	}
	known := map[spec.Attachment]*chain.Judgement{}
	_ = runner.Judge(ctx, entries, limit, func(j *chain.Judgement) { known[j.Attachment()] = j }) // the caller looks at ctx
	for _, a := range list {
		j := known[a.Attachment()]
		if j == nil {
			continue
		}
		rest, found = append(rest, a), append(found, j)
		switch j.State {
		case chain.StateOK, chain.StateFault:
			a.State, a.Why, a.Verdict, a.Fault = chain.StateAlive, "", j.State, j.Err
		case chain.StateNotTested:
			a.Unchecked = hint.Text(j)
		default:
			a.State, a.Why = j.State, j.Why
		}
	}
	return rest, found
}

// Recheck looks again at attachments that seem gone or interrupted: they may have been
// attached or detached while their parts were read one after another. ADD writes the entry before
// everything in it except the result, so the entry is read first.
func (v *Inventory) Recheck(readHost func()) {
	const looks = 2
	for n := range looks + 1 {
		recent := v.recentlyChanged()
		if len(recent) == 0 || n == looks {
			return
		}
		for _, a := range recent {
			if e, err := v.Cache.Lookup(a.Attachment()); err == nil {
				*a = *v.Read(e)
			}
		}
		readHost()
		v.ReadStates(recent)
	}
}

// recentlyChanged returns the attachments that may seem gone or interrupted because they were read too early.
// Those that are being attached or detached now become busy, and those detached meanwhile are left
// out.
func (v *Inventory) recentlyChanged() (found []*Entry) {
	const recent = 2 * time.Second // more than the resolution of times in file systems
	ended := func(a *Entry) bool { return a.State == chain.StateGone || a.State == chain.StateInterrupted }
	if !slices.ContainsFunc(v.Entries, ended) {
		return nil
	}
	v.Entries = slices.DeleteFunc(v.Entries, func(a *Entry) bool {
		if !ended(a) {
			return false
		}
		if v.Cache.Running(a.ContainerID) {
			a.State, a.Why = chain.StateBusy, ""
			return false
		}
		info, err := os.Lstat(a.File())
		if err == nil && info.ModTime().After(v.Now.Add(-recent)) {
			found = append(found, a)
		}
		return errors.Is(err, os.ErrNotExist)
	})
	return found
}

// findHostLink finds the host-side link: that which the result has on the host besides the bridge, if
// the host has it. Where the result has none, as before 0.3.0 or during an ADD, it is the one with the
// attachment's label, which anybody may have set.
func (v *Inventory) findHostLink(a *Entry) {
	recorded := false
	a.HostLink = ""
	for _, i := range a.Parsed.Interfaces {
		if i.Sandbox != "" || i.Name == v.Bridge(a.Conf) {
			continue
		}
		kind := ""
		if v.Links != nil {
			l := v.Links.ByName[i.Name]
			if l == nil || spec.LabelKey(l.Alias) != "" && spec.LabelKey(l.Alias) != a.Key {
				recorded = true
				continue
			}
			kind = l.Kind
		}
		if kind == "veth" || a.HostLink == "" && kind != "bridge" {
			a.HostLink, recorded = i.Name, true
		}
	}
	a.linkless = recorded && a.HostLink == ""
	if recorded || v.Links == nil {
		return
	}
	if l := v.Links.ByKey[a.Key]; l != nil && l.Kind != "ifb" {
		a.HostLink = l.Name
	}
}

// Bridge returns the bridge of a network: the link by which the host reaches its containers, or the
// bridge of that link. Empty: none.
func (v *Inventory) Bridge(c *Conf) string {
	if v.Links == nil || v.Links.ByName[c.Link] == nil {
		return c.Link
	}
	l := v.Links.ByName[c.Link]
	for _, bridge := range []*rtnl.Link{l, v.Links.ByIndex[l.Parent]} {
		if bridge != nil && bridge.Kind == "bridge" {
			return bridge.Name
		}
	}
	return ""
}

// Link returns the host-side link; nil: it is missing, or belongs to another attachment.
func (v *Inventory) Link(a *Entry) *rtnl.Link {
	if v.Links == nil {
		return nil
	}
	l := v.Links.ByName[a.HostLink]
	if l != nil && spec.LabelKey(l.Alias) != "" && spec.LabelKey(l.Alias) != a.Key {
		return nil
	}
	return l
}

// StateText returns the state with its reason, or what CHECK has found.
func (a *Entry) StateText() string {
	text, why := a.State, a.Why
	switch {
	case a.Verdict != "":
		text, why = a.Verdict, a.FaultText()
	case a.Unchecked != "":
		why = chain.StateNotTested + ", " + a.Unchecked
	}
	if why == "" {
		return text
	}
	return text + ": " + why
}

// Faulty reports whether CHECK has found a fault, the namespace is gone, or the ADD was
// interrupted.
func (a *Entry) Faulty() bool {
	return a.Fault != nil || a.State == chain.StateGone || a.State == chain.StateInterrupted
}

// FaultText returns what CHECK has found; empty: nothing.
func (a *Entry) FaultText() string {
	if a.Fault == nil {
		return ""
	}
	return hint.Reason(a.Fault)
}

// AgeText returns the time since the entry was written, in one unit; empty: unknown, as after the
// clock was set. An attachment is not older than the boot.
func (v *Inventory) AgeText(a *Entry) string {
	const day = 24 * time.Hour
	age := v.Now.Sub(a.Since)
	booted := a.State == chain.StateAlive || a.BootID != "" && a.SameBoot()
	switch {
	case a.Since.IsZero(), age < 0, booted && age > v.Uptime:
		return ""
	case age < 2*time.Minute:
		return fmt.Sprintf("%ds", age/time.Second)
	case age < 2*time.Hour:
		return fmt.Sprintf("%dm", age/time.Minute)
	case age < 2*day:
		return fmt.Sprintf("%dh", age/time.Hour)
	}
	return fmt.Sprintf("%dd", age/day)
}

// HasAddr reports whether the attachment's result has an address.
func (a *Entry) HasAddr(addr string) bool {
	for _, p := range a.Addresses() {
		if p.Addr().String() == addr {
			return true
		}
	}
	return false
}

// Operands that are a network, or a container, also where both have the name.
const (
	asNetwork   = "network:"
	asContainer = "container:"
)

// ByName returns a network and its attachments, of which it may have none, or nil and those of a container
// as Find does. The beginning of a container's ID gives way to a network of that name.
func (v *Inventory) ByName(name string, networks []*Network) (*Network, []*Entry, error) {
	network, named := strings.CutPrefix(name, asNetwork)
	i := slices.IndexFunc(networks, func(n *Network) bool { return n.Name == network })
	switch {
	case i >= 0 && !named && slices.ContainsFunc(v.Entries, func(a *Entry) bool { return a.isNamed(name) }):
		return nil, nil, &SeveralError{name, []string{asContainer + name, asNetwork + name}}
	case i >= 0:
		return networks[i], networks[i].Attached, nil
	}
	found, err := v.Find(name)
	return nil, found, err
}

// isNamed reports whether a text is the ID or name of the container, or the path of its namespace.
func (a *Entry) isNamed(text string) bool {
	return a.ContainerID == text || a.Name() == text || a.NetNSPath() == text
}

// leastPrefix is the minimum length of the beginning of an ID that names it.
const leastPrefix = 4

// Find returns the attachments of one container, by its ID, its name, the recorded path of its
// namespace, the beginning of its ID, or another path or the name of its namespace.
func (v *Inventory) Find(name string) (found []*Entry, err error) {
	name = strings.TrimPrefix(name, asContainer)
	exact := func(a *Entry) bool { return a.isNamed(name) }
	begins := func(a *Entry) bool { return len(name) >= leastPrefix && strings.HasPrefix(a.ContainerID, name) }
	var ns netns.ID // zero: no namespace of that name
	if path, err := sandbox.NetNSPath(name); err == nil && name != "" {
		ns, _ = netns.IDAt(path)
	}
	inNS := func(a *Entry) bool { return ns != netns.ID{} && a.IsIn(ns) }
	var ids []string
	for _, matches := range []func(*Entry) bool{exact, begins, inNS} {
		for _, a := range v.Entries {
			if !matches(a) {
				continue
			}
			found = append(found, a)
			if !slices.Contains(ids, a.ContainerID) {
				ids = append(ids, a.ContainerID)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	switch {
	case len(ids) == 0:
		return nil, spec.Errorf(spec.CodeUnknown, "%q is neither a network nor a container with an attachment (`cni-exec ls` lists them)", name)
	case len(ids) > 1:
		return nil, &SeveralError{name, ids}
	}
	return found, nil
}

// A SeveralError is the error of a name that several containers have, or a container and a network.
type SeveralError struct {
	Name  string
	Which []string // operands in place of it
}

// Error has the operands that may be meant.
func (e *SeveralError) Error() string {
	if e.Which[0] == asContainer+e.Name {
		return fmt.Sprintf("%q is a container and a network: write %s", e.Name, strings.Join(e.Which, " or "))
	}
	return fmt.Sprintf("%q is more than one container: %s", e.Name, strings.Join(e.Which, ", "))
}
