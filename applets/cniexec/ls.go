package cniexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cnibox/chain"
	"cnibox/internal/memory"
	"cnibox/internal/tty"
	"cnibox/ipam"
	"cnibox/spec"
)

// The values of --output beside none.
const (
	outputWide = "wide"
	outputJSON = "json"
)

// knownOutput refuses what the verb does not have as --output.
func (c *call) knownOutput() error {
	value, _ := usageOf(c.set.Lookup("output"), c.verb)
	formats := strings.Split(value, "|")
	if c.output == "" || slices.Contains(formats, c.output) {
		return nil
	}
	return fmt.Errorf("%s: --output %q: it must be %s", c.verb, c.output, strings.Join(formats, " or "))
}

// look makes the inventory for a verb that shows it, and names the entries that are broken and
// what could not be read.
func (c *call) look() (*inventory, error) {
	if err := c.stateDirs(); err != nil {
		return nil, err
	}
	v, err := newInventory(c.cache(), c.stateDir)
	if err != nil {
		return nil, err
	}
	c.complain(v, "not read")
	return v, nil
}

// complain names on stderr what the inventory does not have; without is what was not done for it.
func (c *call) complain(v *inventory, without string) {
	for _, b := range v.broken {
		if !b.Renamed() {
			c.warn("cache: %v", b.Err())
		}
	}
	for _, err := range v.unread {
		c.warn("%s: %v", without, err)
	}
}

// warn writes a line to stderr.
func (c *call) warn(format string, args ...any) {
	c.Complain("cni-exec", format, args...)
}

// ls lists the attachments, or the networks.
func (c *call) ls(ctx context.Context, operands []string) (exit int, err error) {
	networks := len(operands) == 1 && operands[0] == "networks"
	if len(operands) > 0 && !networks {
		return 0, usage(`ls: %q: it takes no operand but "networks"; show and who find one`, strings.Join(operands, " "))
	}
	defer memory.CollectLess()()
	if c.checked {
		if err := c.prepare(); err != nil {
			return 0, err
		}
	}
	v, err := c.look()
	if err != nil {
		return 0, err
	}
	if c.checked {
		v.judge(ctx, func(ctx context.Context, a *entry) (string, error) { return c.judge(ctx, a.Entry) })
	}
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if networks {
		return c.lsNetworks(v)
	}
	return c.lsAttachments(v)
}

// lsAttachments lists the attachments.
func (c *call) lsAttachments(v *inventory) (exit int, err error) {
	if c.output == outputJSON {
		return c.writeJSON(v.doc(v.entries))
	}
	s := c.screen()
	columns := []tty.Column{{Title: "NETWORK", Min: 7}, {Title: "NAME", Min: 8}, {Title: "IFACE", Min: 5}, {Title: "ADDRESS", Min: 15},
		{Title: "MAC", Optional: true}, {Title: "HOST"}, {Title: "PORTS", Min: 5}, {Title: "AGE"}, {Title: "STATE", Min: 12, Early: true}}
	if c.output == outputWide {
		s.Width = 0
		columns = append(columns, tty.Column{Title: "RUNTIME"}, tty.Column{Title: "CONTAINER"}, tty.Column{Title: "NETNS"})
	}
	var rows [][]string
	for _, a := range v.entries {
		row := []string{a.NetworkName, a.name(), a.IfName, joined(a.addresses(), bare), a.mac(), a.hostLink,
			joined(a.ports, publishedPort.short), v.ageText(a), a.stateText()}
		if c.output == outputWide {
			row = append(row, a.runtime(), a.ContainerID, a.NetNSPath())
		}
		rows = append(rows, row)
	}
	return c.list(s, columns, rows)
}

// list writes a table in which an empty cell is a dash; without rows it writes nothing.
func (c *call) list(s tty.Screen, columns []tty.Column, rows [][]string) (exit int, err error) {
	if len(rows) == 0 {
		return exitOK, nil
	}
	for _, row := range rows {
		for i := range row {
			if row[i] == "" {
				row[i] = "-"
			}
		}
	}
	return c.write(s.Table(columns, rows))
}

// joined is the list in one cell.
func joined[T any](list []T, text func(T) string) string {
	return strings.Join(each(list, text), ",")
}

// bare is an address without its prefix length.
func bare(p netip.Prefix) string { return p.Addr().String() }

// short is a port as --publish has it.
func (p publishedPort) short() string {
	host := strings.TrimSuffix(p.host(), "/"+p.Protocol)
	text := fmt.Sprintf("%s:%d", host, p.ContainerPort)
	if p.Protocol != "tcp" {
		text += "/" + p.Protocol
	}
	return text
}

// stateText is the state with why it is so, or what CHECK has found.
func (a *entry) stateText() string {
	text, why := a.state, a.why
	switch {
	case a.verdict != "":
		text, why = a.verdict, a.faultText()
	case a.unchecked != "":
		why = "not checked, " + a.unchecked
	}
	if why == "" {
		return text
	}
	return text + ": " + why
}

// faultText is what CHECK has found; empty: nothing.
func (a *entry) faultText() string {
	if a.fault == nil {
		return ""
	}
	return reason(a.fault)
}

// ageText is how long ago the entry was written, in one unit; empty: unknown, as where the clock was
// set since. What is attached is not older than the boot.
func (v *inventory) ageText(a *entry) string {
	const day = 24 * time.Hour
	age := v.now.Sub(a.since)
	booted := a.state == stateAlive || a.BootID != "" && a.SameBoot()
	switch {
	case a.since.IsZero(), age < 0, booted && age > v.uptime:
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

// writeJSON writes a document to stdout, in what a terminal can print.
func (c *call) writeJSON(doc any) (exit int, err error) {
	c.documented = true
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		return 0, err
	}
	return c.write(string(spec.EscapeJSON([]byte(b.String()))))
}

// The shapes of the JSON documents; docs/cni-exec.md describes them. Lists are never null.
type (
	inventoryDoc struct {
		Attachments []attachmentDoc `json:"attachments"`
		Broken      []brokenDoc     `json:"broken"`
		NotTested   []string        `json:"notTested"`
	}

	attachmentDoc struct {
		Network     string          `json:"network"`
		ContainerID string          `json:"containerID"`
		IfName      string          `json:"ifName"`
		Name        string          `json:"name"`
		Runtime     string          `json:"runtime"`
		NetNS       string          `json:"netns"`
		Addresses   []netip.Prefix  `json:"addresses"`
		MAC         string          `json:"mac"`
		HostLink    string          `json:"hostLink"`
		Bridge      string          `json:"bridge"`
		Ports       []publishedPort `json:"ports"`
		Plugins     []string        `json:"plugins"`
		Since       *time.Time      `json:"since"`
		State       string          `json:"state"`
		Why         string          `json:"why"`
		Check       string          `json:"check"`
		Unchecked   string          `json:"unchecked"`
		Faults      []string        `json:"faults"`
		File        string          `json:"file"`
	}

	brokenDoc struct {
		File  string `json:"file"`
		Error string `json:"error"`
	}
)

// doc has some of the attachments, and all that was not read or tested.
func (v *inventory) doc(list []*entry) inventoryDoc {
	return inventoryDoc{each(list, v.attachment), each(v.broken, broken), each(v.unread, error.Error)}
}

func broken(b chain.Broken) brokenDoc { return brokenDoc{b.Name(), b.Err().Error()} }

// notNull is a list that is not null in JSON.
func notNull[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// each is what fn makes of each of a list; it is not null in JSON.
func each[T, D any](list []T, fn func(T) D) []D {
	all := make([]D, 0, len(list))
	for _, e := range list {
		all = append(all, fn(e))
	}
	return all
}

// attachment is one of the documents.
func (v *inventory) attachment(a *entry) attachmentDoc {
	d := attachmentDoc{
		Network: a.NetworkName, ContainerID: a.ContainerID, IfName: a.IfName, Name: a.name(), Runtime: a.runtime(), NetNS: a.NetNSPath(),
		Addresses: notNull(a.addresses()), MAC: a.mac(), HostLink: a.hostLink, Bridge: a.conf.bridge(),
		Ports: notNull(a.ports), Plugins: a.conf.types(), State: a.state, Why: a.why,
		Check: a.verdict, Unchecked: a.unchecked, Faults: []string{}, File: a.File(),
	}
	if a.fault != nil {
		d.Faults = append(d.Faults, a.faultText())
	}
	if !a.since.IsZero() {
		since := a.since.UTC().Truncate(time.Second)
		d.Since = &since
	}
	return d
}

// A network is one that is configured, or has attachments.
type network struct {
	name     string
	file     string // of the configuration; empty: there is none (any more)
	conf     *netConf
	attached []*entry
}

// knownNetworks are those of --conf-dir and of the cache, in the order of their names. Of a network
// whose configuration is gone, that of an attachment's ADD is taken. The default network is one
// if it has been used, and nothing is configured.
func (c *call) knownNetworks(v *inventory) []*network {
	lists, wrong := chain.Lists(c.confDir)
	for _, err := range wrong {
		c.warn("%v", err)
	}
	byName := map[string]*network{}
	if len(lists)+len(wrong) == 0 {
		if conf := defaultConf(v.cache.Dir); conf != nil {
			byName[defaultNetwork] = &network{name: defaultNetwork, conf: conf}
		}
	}
	for _, l := range lists {
		doc, err := l.Effective()
		if err != nil {
			c.warn("%s: %v", l.File, err)
		}
		byName[l.Name] = &network{name: l.Name, file: l.File, conf: v.conf(doc)}
	}
	for _, a := range v.entries {
		n := byName[a.NetworkName]
		if n == nil {
			n = &network{name: a.NetworkName, conf: a.conf}
			byName[a.NetworkName] = n
		}
		n.attached = append(n.attached, a)
	}
	all := make([]*network, 0, len(byName))
	for _, n := range byName {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *network) int { return strings.Compare(a.name, b.name) })
	return all
}

// defaultConf is that of the default network, if its subnets were chosen; nil: they were not.
func defaultConf(cacheDir string) *netConf {
	s, err := readSubnets(filepath.Join(cacheDir, "cnibox", subnetsFile))
	if err != nil {
		return nil
	}
	return readNetConf(embeddedConf(s, hostHasIPv6(), filepath.Join(cacheDir, "networks"), ""))
}

// A pool is a range set of a network, and what of it is leased.
type pool struct {
	set   ipam.RangeSet
	used  uint64
	free  uint64       // 2^64-1: at least so many
	stale []netip.Addr // of used: the owner has no live attachment in the cache; see inventory.staleKnown
}

// pools counts the leases of a network, which are read without their lock. Leases in no range
// set count for none. With an error, used and stale are not known.
func (v *inventory) pools(n *network) (pools []pool, err error) {
	for _, set := range n.conf.pools() {
		pools = append(pools, pool{set: set, free: set.Usable()})
	}
	if len(pools) == 0 {
		return nil, nil
	}
	leased, err := ipam.Peek(n.conf.leases(v.stateDir, n.name), n.name)
	live := map[ipam.Lease]bool{}
	for _, a := range n.attached {
		if a.alive() {
			live[ipam.Lease{ContainerID: a.ContainerID, IfName: a.IfName}] = true
			live[ipam.Lease{ContainerID: a.ContainerID}] = true
		}
	}
	staleKnown := err == nil && v.staleKnown()
	for _, l := range leased {
		i := slices.IndexFunc(pools, func(p pool) bool { return p.set.Contains(l.Addr) })
		if i < 0 {
			continue
		}
		p := &pools[i]
		p.used++
		if p.free > 0 && p.free != math.MaxUint64 {
			p.free--
		}
		if staleKnown && !live[l.Owner] && !v.attachedSince(n, l.Owner) {
			p.stale = append(p.stale, l.Addr)
		}
	}
	for _, p := range pools {
		slices.SortFunc(p.stale, netip.Addr.Compare)
	}
	return pools, err
}

// staleKnown reports whether every entry could be read that may own a lease. Broken ones own none.
func (v *inventory) staleKnown() bool {
	return !slices.ContainsFunc(v.broken, func(b chain.Broken) bool { return errors.Is(b.Err(), os.ErrPermission) })
}

// attachedSince reports whether the owner of a lease has a live attachment now: ADD may have
// written both after the entries were read, and before the leases were.
func (v *inventory) attachedSince(n *network, owner ipam.Lease) bool {
	e, err := v.cache.Lookup(spec.Attachment{Network: n.name, ContainerID: owner.ContainerID, IfName: owner.IfName})
	return err == nil && e.Live()
}

// alive reports whether the attachment's namespace may exist. An ADD that runs has its lease
// before its entry is more than an intent.
func (a *entry) alive() bool { return a.state == stateBusy || a.Live() || a.state == stateUnknown }

// The shapes of networks.
type (
	networksDoc struct {
		Networks []networkDoc `json:"networks"`
	}

	networkDoc struct {
		Name        string    `json:"name"`
		File        string    `json:"file"`
		CNIVersion  string    `json:"cniVersion"`
		Plugins     []string  `json:"plugins"`
		Bridge      string    `json:"bridge"`
		Pools       []poolDoc `json:"pools"`
		Attachments int       `json:"attachments"`
		Gone        int       `json:"gone"`
		Faults      *int      `json:"faults"` // nil: none was checked
	}

	poolDoc struct {
		Ranges []rangeDoc   `json:"ranges"`
		Used   uint64       `json:"used"`
		Free   uint64       `json:"free"`
		Stale  []netip.Addr `json:"stale"`
	}

	rangeDoc struct {
		Subnet  netip.Prefix `json:"subnet"`
		Start   netip.Addr   `json:"rangeStart"`
		End     netip.Addr   `json:"rangeEnd"`
		Gateway netip.Addr   `json:"gateway"`
	}
)

// doc is the document of a network.
func (n *network) doc(pools []pool) networkDoc {
	return networkDoc{
		Name: n.name, File: n.file, CNIVersion: n.conf.CNIVersion, Plugins: n.conf.types(), Bridge: n.conf.bridge(),
		Pools: each(pools, pool.doc), Attachments: len(n.attached), Gone: n.gone(), Faults: n.faults(),
	}
}

func (p pool) doc() poolDoc {
	const exact = 1<<53 - 1 // what numbers of JSON are read as without loss
	return poolDoc{each(p.set, func(r ipam.Range) rangeDoc { return rangeDoc{r.Subnet, r.Start, r.End, r.Gateway} }),
		p.used, min(p.free, exact), notNull(p.stale)}
}

// gone is how many attachments are of a namespace that is gone, or interrupted.
func (n *network) gone() (count int) {
	for _, a := range n.attached {
		if a.state == stateGone || a.state == stateInterrupted {
			count++
		}
	}
	return count
}

// faults is how many attachments CHECK has found something of; nil: it was run of none.
func (n *network) faults() *int {
	count, checked := 0, false
	for _, a := range n.attached {
		checked = checked || a.verdict != ""
		if a.verdict == verdictFault {
			count++
		}
	}
	if !checked {
		return nil
	}
	return &count
}

// lsNetworks lists the networks.
func (c *call) lsNetworks(v *inventory) (exit int, err error) {
	s := c.screen()
	columns := []tty.Column{{Title: "NETWORK", Min: 7}, {Title: "TYPE", Min: 6}, {Title: "BRIDGE"}, {Title: "SUBNETS", Min: 12},
		{Title: "USED"}, {Title: "FREE"}, {Title: "STALE"}, {Title: "ATTACHED"}, {Title: "GONE"}}
	if c.checked {
		columns = append(columns, tty.Column{Title: "FAULTS"})
	}
	if c.output == outputWide {
		s.Width = 0
		columns = append(columns, tty.Column{Title: "PLUGINS"}, tty.Column{Title: "VERSION"}, tty.Column{Title: "FILE"})
	}
	all := networksDoc{[]networkDoc{}}
	var rows [][]string
	for _, n := range c.knownNetworks(v) {
		pools, err := v.pools(n)
		if err != nil {
			c.warn("leases of network %s: %v", n.name, err)
		}
		all.Networks = append(all.Networks, n.doc(pools))
		var subnets []string
		var used uint64
		stale, free := 0, uint64(math.MaxUint64) // an attachment takes an address of each set
		for _, p := range pools {
			used, stale, free = max(used, p.used), max(stale, len(p.stale)), min(free, p.free)
			for _, r := range p.set {
				subnets = append(subnets, r.Subnet.String())
			}
		}
		row := []string{n.name, n.conf.interfacePlugin().Type, n.conf.bridge(), strings.Join(subnets, ","),
			fmt.Sprint(used), count(free), fmt.Sprint(stale), fmt.Sprint(len(n.attached)), fmt.Sprint(n.gone())}
		if len(pools) == 0 || err != nil {
			row[4], row[5], row[6] = "", "", ""
		}
		if !v.staleKnown() {
			row[6] = ""
		}
		if c.checked {
			faults := ""
			if n := n.faults(); n != nil {
				faults = fmt.Sprint(*n)
			}
			row = append(row, faults)
		}
		if c.output == outputWide {
			row = append(row, strings.Join(n.conf.types(), ","), n.conf.CNIVersion, n.file)
		}
		rows = append(rows, row)
	}
	if c.output == outputJSON {
		return c.writeJSON(all)
	}
	return c.list(s, columns, rows)
}

// count is a number of addresses: those of IPv6 are too many to be written.
func count(n uint64) string {
	if n >= 1<<32 {
		return "many"
	}
	return fmt.Sprint(n)
}
