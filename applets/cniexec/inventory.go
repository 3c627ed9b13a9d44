package cniexec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/cniexec/sandbox"
	"cnibox/chain"
	"cnibox/internal/nsid"
	"cnibox/rtnl"
	"cnibox/spec"
)

// An inventory is what is attached on this host, by whichever runtime: the entries of libcni's
// cache, with whether their namespaces exist and the links of the host. It has facts and no
// judgement, which is CHECK's. [newInventory] makes one.
//
// Making one changes nothing, takes no lock, starts no plugin and enters no namespace, so that
// it does not wait for an ADD. A verb that changes something reads again under the lock.
type inventory struct {
	entries []*entry // in the order of networks, names, containers and interfaces
	broken  []chain.Broken
	unread  []error // why something was not read
	now     time.Time
	uptime  time.Duration // of the host

	links *hostLinks          // nil: not read
	confs map[string]*netConf // by their text: most attachments of a network have the same
	cache *chain.Cache

	stateDir string // where plugins store state; empty: in the default directories
}

// The states of an attachment.
const (
	stateAlive       = "alive"       // its namespace exists
	stateGone        = "gone"        // its namespace does not exist any more
	stateInterrupted = "interrupted" // its add has ended before it was done
	stateBusy        = "busy"        // a verb runs for the container
	stateUnknown     = "unknown"     // the namespace is not recorded, or must not be read
)

// The verdicts of CHECK.
const (
	verdictOK    = "ok"
	verdictFault = "fault"
)

// An entry is one attachment: an entry of the cache and what is known of it.
type entry struct {
	*chain.Entry
	key    string       // [spec.Attachment.Key]
	conf   *netConf     // of its ADD
	result *spec.Result // interfaces and addresses; empty if there is none, or none that can be read
	since  time.Time    // when the entry was written; zero: unknown, as without a clock
	ports  []publishedPort

	// Of inventory.look:
	hostLink string // host-side veth, or what else the plugin made on the host; empty: none
	state    string
	why      string // it is gone, or unknown

	// Of inventory.judge:
	verdict   string // empty: CHECK has not said
	fault     error  // what it has found
	unchecked string // why it has not said, though it was asked for
}

// name is that of the container's pod, that of `run --name`, the process or the file that the path
// of its namespace has, or the container's ID.
func (a *entry) name() string {
	pod, space := "", ""
	for _, arg := range a.Args {
		switch arg[0] {
		case "K8S_POD_NAME":
			pod = arg[1]
		case "K8S_POD_NAMESPACE":
			space = arg[1]
		}
	}
	path := a.NetNSPath()
	run, isRun := strings.CutPrefix(a.ContainerID, chain.RunPrefix)
	process, isProcess := strings.CutPrefix(path, "/proc/")
	pid, _, _ := strings.Cut(process, "/")
	switch {
	case pod != "" && space != "":
		return space + "/" + pod
	case pod != "":
		return pod
	case isRun && !spec.Hashed(run, "", sandbox.RunDigits):
		return run
	case path == "" || !derived(a.ContainerID):
		return shortID(a.ContainerID)
	case isProcess && strings.Trim(pid, "0123456789") == "":
		return "pid " + pid
	}
	return filepath.Base(path)
}

// in reports whether the path of the attachment's namespace leads to one.
func (a *entry) in(netns nsid.ID) bool {
	id, err := nsid.At(a.NetNSPath())
	return err == nil && id == netns
}

// derived reports whether a container ID was derived from the path of a namespace.
func derived(id string) bool {
	return strings.HasPrefix(id, chain.CnitoolPrefix) || strings.HasPrefix(id, chain.RunPrefix)
}

// shortID cuts the IDs of runtimes, which have 64 hex digits, as these show them.
func shortID(id string) string {
	if spec.Hashed(id, "", 64) {
		return id[:12]
	}
	return id
}

// runtime is a guess at who made the attachment, by the names that runtimes give; empty: none.
// Entries of this program have the boot's ID; the paths are those of containerd (cni-UUID),
// podman (netns-UUID) and CRI-O (UUID).
func (a *entry) runtime() string {
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

// addresses are those of the interface, in the order of the result.
func (a *entry) addresses() (list []netip.Prefix) {
	for _, ip := range a.result.Addresses(a.IfName, nil) {
		list = append(list, ip.Address)
	}
	return list
}

// mac is that of the interface in the container; empty: the result does not have it.
func (a *entry) mac() string {
	for _, i := range a.result.Interfaces {
		if i.Name == a.IfName && i.Sandbox != "" {
			return i.MAC
		}
	}
	return ""
}

// conf is readNetConf, once for each text.
func (v *inventory) conf(doc []byte) *netConf {
	c := v.confs[string(doc)]
	if c == nil {
		c = readNetConf(doc)
		v.confs[string(doc)] = c
	}
	return c
}

// newInventory reads the cache, and looks at the namespace of each entry and at the links of the
// host. The error is that of a cache that cannot be read.
func newInventory(cache *chain.Cache, stateDir string) (*inventory, error) {
	v := emptyInventory(cache, stateDir)
	listed := make(chan struct{}) // the kernel's part takes as long as the files'
	go func() {
		v.readHost()
		close(listed)
	}()
	entries, broken, err := cache.List()
	v.broken = broken
	for _, e := range entries {
		v.entries = append(v.entries, v.read(e))
	}
	<-listed
	if err != nil {
		return nil, err
	}
	v.look(v.entries)
	v.lookAgain(v.readHost)
	v.sort()
	return v, nil
}

// sort puts the attachments in order.
func (v *inventory) sort() {
	slices.SortStableFunc(v.entries, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.NetworkName, b.NetworkName), cmp.Compare(a.name(), b.name()), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
}

// emptyInventory has no attachment, and has not looked at the host. It is for verbs that need
// few entries, which they read.
func emptyInventory(cache *chain.Cache, stateDir string) *inventory {
	var info unix.Sysinfo_t
	_ = unix.Sysinfo(&info) // cannot fail
	uptime := time.Duration(info.Uptime+1) * time.Second
	return &inventory{now: time.Now(), uptime: uptime, cache: cache, stateDir: stateDir, confs: map[string]*netConf{}}
}

// read decodes what an entry has.
func (v *inventory) read(e *chain.Entry) *entry {
	a := &entry{Entry: e, key: e.Attachment().Key(), conf: v.conf(e.Config), result: new(spec.Result)}
	if len(e.Result) > 0 && !a.readResult() {
		a.result = a.wholeResult()
	}
	if raw := e.CapabilityArgs[capPorts]; raw != nil && a.conf.publishes() {
		_ = json.Unmarshal(raw, &a.ports) // portmap has refused what is no list
	}
	for i := range a.ports {
		a.ports[i].Protocol = strings.ToLower(cmp.Or(a.ports[i].Protocol, "tcp"))
	}
	a.ports = slices.DeleteFunc(a.ports, func(p publishedPort) bool { return p.HostPort == 0 })
	if info, err := os.Lstat(e.File()); err == nil {
		a.since = info.ModTime()
	}
	return a
}

// readResult reads interfaces and addresses, which is much quicker than all of a result; false
// for one of an old version, or that is not as it should be.
func (a *entry) readResult() bool {
	var r struct {
		Interfaces []struct{ Name, Mac, Sandbox string }
		IPs        []struct {
			Address   netip.Prefix
			Interface *int
		}
		IP4, IP6 json.RawMessage
	}
	if err := json.Unmarshal(a.Result, &r); err != nil || r.IP4 != nil || r.IP6 != nil {
		return false
	}
	for _, i := range r.Interfaces {
		a.result.Interfaces = append(a.result.Interfaces, spec.Interface{Name: i.Name, MAC: i.Mac, Sandbox: i.Sandbox})
	}
	for _, ip := range r.IPs {
		a.result.IPs = append(a.result.IPs, spec.IP{Address: ip.Address, Interface: ip.Interface})
	}
	return true
}

// wholeResult reads all of the result; empty if it cannot be read.
func (a *entry) wholeResult() *spec.Result {
	version, err := spec.ParseVersion(a.conf.CNIVersion)
	if err != nil {
		version = spec.Newest
	}
	r, err := spec.ParseResult(a.Result, version)
	if err != nil {
		return new(spec.Result)
	}
	return r
}

// A hostLinks is the links of the host, listed once.
type hostLinks struct {
	all     []rtnl.Link
	byName  map[string]*rtnl.Link
	byIndex map[uint32]*rtnl.Link
	byKey   map[string]*rtnl.Link // by the attachment's key in the alias
}

// readHost lists the links.
func (v *inventory) readHost() {
	var err error
	v.unread = nil
	if v.links, err = listLinks(); err != nil {
		v.unread = append(v.unread, err)
	}
}

// listLinks lists the links of the host.
func listLinks() (*hostLinks, error) {
	all, err := askHost((*rtnl.Conn).Links)
	if err != nil {
		return nil, err
	}
	return indexLinks(all), nil
}

// askHost asks the kernel for something of the host's network namespace.
func askHost[T any](ask func(*rtnl.Conn) (T, error)) (answer T, err error) {
	conn, err := rtnl.Dial(rtnl.Host())
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	return ask(conn)
}

// indexLinks makes the indexes of a list.
func indexLinks(all []rtnl.Link) *hostLinks {
	h := &hostLinks{all: all, byName: make(map[string]*rtnl.Link, len(all)), byIndex: make(map[uint32]*rtnl.Link, len(all)), byKey: make(map[string]*rtnl.Link, len(all))}
	for i := range all {
		l := &all[i]
		h.byName[l.Name], h.byIndex[l.Index] = l, l
		// The IFB of a limit has the label as well. It counts where it is all that is left.
		if key := spec.LabelKey(l.Alias); key != "" && (l.Kind != "ifb" || h.byKey[key] == nil) {
			h.byKey[key] = l
		}
	}
	return h
}

// look fills in the state and the host-side link of attachments.
func (v *inventory) look(list []*entry) {
	for _, a := range list {
		v.findHostLink(a)
		a.why = ""
		if a.Interrupted() {
			a.state = stateInterrupted
		} else {
			a.state, a.why = a.namespace()
		}
	}
}

// lookAgain looks again at what is gone or interrupted, since it may have been attached or detached
// while its parts were read one after another. ADD writes the entry before what is in it, but for the
// result, and so the entry is read first.
func (v *inventory) lookAgain(readHost func()) {
	const looks = 2
	for n := range looks + 1 {
		young := v.young()
		if len(young) == 0 || n == looks {
			return
		}
		for _, a := range young {
			if e, err := v.cache.Lookup(a.Attachment()); err == nil {
				*a = *v.read(e)
			}
		}
		readHost()
		v.look(young)
	}
}

// young are the attachments that may seem to be gone or interrupted by having looked too early. What
// is being attached or detached now is busy, and what has been detached meanwhile is left out.
func (v *inventory) young() (young []*entry) {
	const recent = 2 * time.Second // more than file systems round times to
	ended := func(a *entry) bool { return a.state == stateGone || a.state == stateInterrupted }
	if !slices.ContainsFunc(v.entries, ended) {
		return nil
	}
	running := v.cache.Running()
	v.entries = slices.DeleteFunc(v.entries, func(a *entry) bool {
		if !ended(a) {
			return false
		}
		if running(a.ContainerID) {
			a.state, a.why = stateBusy, ""
			return false
		}
		info, err := os.Lstat(a.File())
		if err == nil && info.ModTime().After(v.now.Add(-recent)) {
			young = append(young, a)
		}
		return errors.Is(err, os.ErrNotExist)
	})
	return young
}

// namespace returns the state of an attachment by its namespace, and why it is not alive.
//
// The ID decides, as entering 1,000 namespaces for their cookies would take as long as all else.
func (a *entry) namespace() (state, why string) {
	path := a.NetNSPath()
	id, err := nsid.At(path)
	switch {
	case !a.SameBoot():
		return stateGone, "of an earlier boot"
	case path == "":
		return stateUnknown, "its namespace is not recorded"
	case errors.Is(err, os.ErrNotExist):
		return stateGone, "no namespace " + path
	case errors.Is(err, nsid.ErrNotNS):
		return stateGone, path + " is not a namespace"
	case err != nil:
		return stateUnknown, err.Error()
	case a.NetNSID != "" && a.NetNSID != id.String():
		return stateGone, path + " is another namespace now"
	}
	return stateAlive, ""
}

// judge runs CHECK of the attachments that are alive, and notes what it finds. What is detached
// meanwhile is left out. It ends early when ctx does.
func (v *inventory) judge(ctx context.Context, check func(context.Context, *entry) (unchecked string, err error)) {
	v.entries = slices.DeleteFunc(v.entries, func(a *entry) bool {
		if a.state != stateAlive || ctx.Err() != nil {
			return false
		}
		var err error
		a.unchecked, err = check(ctx, a)
		switch {
		case err == nil && a.unchecked == "":
			a.verdict = verdictOK
		case err == nil:
		case deleted(v.cache, a.Entry):
			return true
		case a.Gone():
			a.state, a.why = stateGone, a.NetNSPath()+" is another namespace now"
		case errors.Is(err, os.ErrPermission) || spec.AsError(err).Code == spec.CodeTryAgain:
			a.unchecked = reason(err)
		default:
			a.verdict, a.fault = verdictFault, err
		}
		return false
	})
}

// findHostLink finds the host-side link: the one that has the attachment's label, or what the
// result has on the host besides the bridge.
func (v *inventory) findHostLink(a *entry) {
	if v.links != nil {
		if l := v.links.byKey[a.key]; l != nil && l.Kind != "ifb" {
			a.hostLink = l.Name
			return
		}
	}
	for _, i := range a.result.Interfaces {
		if i.Sandbox != "" || i.Name == a.conf.bridge() {
			continue
		}
		kind := ""
		if v.links != nil && v.links.byName[i.Name] != nil {
			kind = v.links.byName[i.Name].Kind
		}
		if kind == "veth" || a.hostLink == "" && kind != "bridge" { // a delegate's bridge is not known by its name
			a.hostLink = i.Name
		}
	}
}

// link is the host-side link; nil: it does not exist, or is another attachment's.
func (v *inventory) link(a *entry) *rtnl.Link {
	if v.links == nil {
		return nil
	}
	l := v.links.byName[a.hostLink]
	if l != nil && spec.LabelKey(l.Alias) != "" && spec.LabelKey(l.Alias) != a.key {
		return nil
	}
	return l
}

// host is the host's side of a port, as 8080/tcp or 192.0.2.1:53/udp.
func (p publishedPort) host() string {
	text := fmt.Sprint(p.HostPort)
	if ip, err := netip.ParseAddr(p.HostIP); err == nil && !ip.IsUnspecified() {
		text = netip.AddrPortFrom(ip, p.HostPort).String()
	}
	return text + "/" + p.Protocol
}
