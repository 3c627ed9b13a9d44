package cniexec

import (
	"cmp"
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

	"cnibox/chain"
	"cnibox/internal/nsid"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// An inventory is what is attached on this host, by whichever runtime: the entries of libcni's
// cache, compared with the kernel, the rules and the leases. [newInventory] makes one.
//
// Making one changes nothing, takes no lock, starts no plugin and enters no namespace, so that
// it does not wait for an ADD. A verb that changes something reads again under the lock.
type inventory struct {
	entries []*entry // in the order of networks, names, containers and interfaces
	broken  []chain.Broken
	unread  []error // why something was not tested, as of rules for an ordinary user
	now     time.Time
	uptime  time.Duration // of the host

	links  *hostLinks               // nil: not read
	rules  map[string][]nft.Holding // by the owner's key; nil: not read
	leases map[string]leaseNames    // by directory; each is read once

	leaseDirs map[leasesOf]string // of networks with their configurations; each is looked for once

	// Host ports by container: of several attachments one has the port, the others are next.
	published map[portOf]bool
	confs     map[string]*netConf // by their text: most attachments of a network have the same
	cache     *chain.Cache

	stateDir string // where plugins store state; empty: in the default directories
}

// The states of an attachment.
const (
	stateOK      = "ok"
	stateFault   = "fault"   // see faults
	stateBusy    = "busy"    // a verb runs for the container
	stateUnknown = "unknown" // the namespace is not recorded, or must not be read
)

// An entry is one attachment: an entry of the cache and what is known of it.
type entry struct {
	*chain.Entry
	key    string       // [spec.Attachment.Key]
	conf   *netConf     // of its ADD
	result *spec.Result // interfaces and addresses; empty if there is none, or none that can be read
	since  time.Time    // when the entry was written; zero: unknown, as without a clock
	ports  []publishedPort

	// Of inventory.test:
	hostLink string // host-side veth, or what else the plugin made on the host; empty: none
	state    string
	faults   []string
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
	case isRun && !spec.Hashed(run, "", runDigits):
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

// newInventory reads the cache, and compares each entry with the kernel, the rules and the
// leases. The error is that of a cache that cannot be read.
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
	v.testAll(v.entries)
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
	return &inventory{now: time.Now(), uptime: uptime, cache: cache, stateDir: stateDir, confs: map[string]*netConf{},
		leases: map[string]leaseNames{}, leaseDirs: map[leasesOf]string{}}
}

// read decodes what an entry has. It is not tested.
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

// readHost lists the links and the rules. Leases are listed where a test asks for them.
func (v *inventory) readHost() {
	v.unread, v.links, v.rules, v.leases = nil, nil, nil, map[string]leaseNames{}
	var err error
	if v.links, err = listLinks(); err != nil {
		v.unread = append(v.unread, err)
	}
	held, err := nft.Open(rtnl.Host()).Holdings()
	if err != nil {
		v.unread = append(v.unread, err)
		return
	}
	v.rules = map[string][]nft.Holding{}
	for _, h := range held {
		v.rules[h.Key] = append(v.rules[h.Key], h)
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

// A portOf is a host port of a container.
type portOf struct {
	containerID, proto string
	port               uint16
}

// testAll tests attachments, after the ports of all are known.
func (v *inventory) testAll(list []*entry) {
	v.published = map[portOf]bool{}
	for _, a := range v.entries {
		for _, h := range v.rules[a.key] {
			if h.Kind == nft.KindPortMap {
				v.published[portOf{a.ContainerID, h.Proto, h.Port}] = true
			}
		}
	}
	for _, a := range list {
		v.test(a)
	}
}

// test fills in the state of an attachment. The test is a cheap one: the namespace is there
// and the same, the host-side link is there, up and on its bridge, and the elements and leases
// that its configuration asks for are there. CHECK looks closer.
func (v *inventory) test(a *entry) {
	a.state = stateOK
	v.findHostLink(a)
	switch {
	case a.Interrupted():
		a.fault("add was interrupted")
	case !v.testNetNS(a):
	default:
		v.testLink(a)
		v.testRules(a)
		v.testLeases(a)
	}
}

// lookAgain looks again at what has a fault, since it may have been attached or detached while
// its parts were read one after another. ADD writes the entry before what is in it, but for the
// result, and so the entry is read first.
func (v *inventory) lookAgain(readHost func()) {
	const looks = 2
	for n := range looks + 1 {
		young := v.youngFaults()
		if len(young) == 0 || n == looks {
			return
		}
		for _, a := range young {
			if e, err := v.cache.Lookup(a.Attachment()); err == nil {
				*a = *v.read(e)
			}
		}
		readHost()
		v.testAll(young)
	}
}

// youngFaults are the attachments with a fault that may be one of having looked too early. What is
// being attached or detached now is busy, and what has been detached meanwhile is left out.
func (v *inventory) youngFaults() (young []*entry) {
	const recent = 2 * time.Second // more than file systems round times to
	if !slices.ContainsFunc(v.entries, func(a *entry) bool { return a.state == stateFault }) {
		return nil
	}
	running := v.cache.Running()
	v.entries = slices.DeleteFunc(v.entries, func(a *entry) bool {
		if a.state != stateFault {
			return false
		}
		if running(a.ContainerID) {
			a.state, a.faults = stateBusy, nil
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

// fault adds one.
func (a *entry) fault(format string, args ...any) {
	a.state = stateFault
	a.faults = append(a.faults, fmt.Sprintf(format, args...))
}

// testNetNS reports whether the rest is worth a test: nothing is left of an attachment whose
// namespace is gone.
//
// The ID decides, as entering 1,000 namespaces for their cookies would take as long as all else. A
// new namespace with the ID of the old one has not its links, which are looked at next.
func (v *inventory) testNetNS(a *entry) bool {
	path := a.NetNSPath()
	id, err := nsid.At(path)
	switch {
	case !a.SameBoot():
		a.fault("of an earlier boot")
	case path == "":
		a.state = stateUnknown
		return true
	case errors.Is(err, os.ErrNotExist):
		a.fault("no namespace %s", path)
	case errors.Is(err, nsid.ErrNotNS):
		a.fault("%s is no namespace", path)
	case err != nil:
		a.state = stateUnknown
		return true
	case a.NetNSID != "" && a.NetNSID != id.String():
		a.fault("%s is another namespace now", path)
	}
	return a.state != stateFault
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

// testLink looks at the host-side link and the bridge.
func (v *inventory) testLink(a *entry) {
	if v.links == nil {
		return
	}
	bridge, l := a.conf.bridge(), v.link(a)
	br := v.links.byName[bridge]
	if bridge != "" && br == nil {
		a.fault("no bridge %s", bridge)
	}
	switch {
	case l == nil && a.hostLink != "":
		a.fault("no link %s", a.hostLink)
	case l == nil:
	case !l.Up:
		a.fault("%s is down", l.Name)
	case br != nil && l.Kind == "veth" && l.Master != br.Index:
		a.fault("%s not on %s", l.Name, bridge)
	}
	if br != nil && !br.Up {
		a.fault("%s is down", bridge)
	}
}

// ours reports whether plugins of this program made the attachment: only then elements are
// to be in our tables. An entry of this program may be of plugins of others on CNI_PATH, whose
// host-side link has no label.
func (v *inventory) ours(a *entry) bool {
	if l := v.link(a); l != nil {
		return spec.LabelKey(l.Alias) != ""
	}
	return a.BootID != ""
}

// testRules looks for the elements that the configuration asks for.
func (v *inventory) testRules(a *entry) {
	if v.rules == nil || !v.ours(a) {
		return
	}
	addresses := a.addresses()
	lacks := func(ip netip.Prefix, kinds ...nft.Kind) bool {
		return !slices.ContainsFunc(v.rules[a.key], func(h nft.Holding) bool { return h.Addr == ip.Addr() && slices.Contains(kinds, h.Kind) })
	}
	for i := range a.conf.Plugins {
		p := &a.conf.Plugins[i]
		switch {
		case i == 0 && p.IPMasq && (p.Type == "bridge" || p.Type == "ptp"):
			for _, ip := range addresses {
				if lacks(ip, nft.KindMasquerade) {
					a.fault("no masquerading of %s", ip.Addr())
				}
			}
		case p.Type == "firewall":
			for _, ip := range addresses {
				if lacks(ip, nft.KindFirewall, nft.KindZone) {
					a.fault("no firewall element of %s", ip.Addr())
				}
			}
		case p.Type == "portmap" && p.Capabilities[capPorts]:
			for _, port := range a.ports {
				if port.fits(addresses) && !v.published[portOf{a.ContainerID, port.Protocol, port.HostPort}] {
					a.fault("no host port %s", port.host())
				}
			}
		}
	}
}

// fits reports whether portmap publishes the port for one of the addresses: it skips those that
// the host's address is of another family than.
func (p publishedPort) fits(addresses []netip.Prefix) bool {
	ip, err := netip.ParseAddr(p.HostIP)
	return slices.ContainsFunc(addresses, func(a netip.Prefix) bool { return err != nil || ip.Unmap().Is4() == a.Addr().Is4() })
}

// host is the host's side of a port, as 8080/tcp or 192.0.2.1:53/udp.
func (p publishedPort) host() string {
	text := fmt.Sprint(p.HostPort)
	if ip, err := netip.ParseAddr(p.HostIP); err == nil && !ip.IsUnspecified() {
		text = netip.AddrPortFrom(ip, p.HostPort).String()
	}
	return text + "/" + p.Protocol
}

// A leasesOf is a network with one of its configurations.
type leasesOf struct {
	conf    *netConf
	network string
}

// leaseNames are the names in a directory of leases; nil: it could not be read.
type leaseNames map[string]bool

// testLeases looks for the files of the leases, not into them.
func (v *inventory) testLeases(a *entry) {
	dir, known := v.leaseDirs[leasesOf{a.conf, a.NetworkName}]
	if !known {
		dir = a.conf.leases(v.stateDir, a.NetworkName)
		v.leaseDirs[leasesOf{a.conf, a.NetworkName}] = dir
	}
	if dir == "" {
		return
	}
	names := v.leaseNames(filepath.Join(dir, a.NetworkName))
	if names == nil {
		return
	}
	for _, ip := range a.addresses() {
		if !names[ip.Addr().String()] {
			a.fault("no lease of %s", ip.Addr())
		}
	}
}

// leaseNames lists a directory of leases, once.
func (v *inventory) leaseNames(dir string) leaseNames {
	names, ok := v.leases[dir]
	if ok {
		return names
	}
	entries, err := os.ReadDir(dir)
	switch {
	case err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		names = leaseNames{}
		for _, e := range entries {
			names[e.Name()] = true
		}
	default:
		v.unread = append(v.unread, err)
	}
	v.leases[dir] = names
	return names
}
