package cniexec

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/applets/cniexec/defaultnet"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

func lsVerb() *verb {
	return &verb{name: "ls", group: "Look", operands: "[ID|NETWORK]", summary: "list attachments of all runtimes, or networks", new: func(c *call) action { return &lsCall{call: c} },
		text: `STATE is a fact about the namespace: alive, gone with the reason, interrupted
when the add has not ended, busy while a verb is at work, or unknown. Only CHECK
knows whether what is alive is as add left it: with --check STATE is ok or
fault, and what it finds, and what to do, is a line below. Wide and json have
all columns, and cut none; openmetrics has numbers of attachments and addresses
for node_exporter. The exit code is 3 if something could not be read.`,
		examples: []example{
			{"cni-exec ls mynet --check", "what is attached to a network, and whether it is well"},
			{"cni-exec ls --networks", "with the addresses that are used, free and stale"},
		},
	}
}

// A lsCall is one call of ls.
type lsCall struct {
	*call
	checked  bool
	networks bool
	faults   bool           // of an earlier release
	all      []*chain.Entry // of the cache, also where those of a name are asked for
}

func (c *lsCall) flags(f *flagSet) {
	f.BoolVar(&c.checked, "check", false, "run CHECK of each attachment that is alive, and list what it finds")
	f.BoolVar(&c.networks, "networks", false, "list networks")
	f.BoolVar(&c.faults, "faults", false, "")
	f.former("faults", "`cni-exec check` finds the same")
	f.outputs("`wide|json|jsonl|openmetrics` print all columns, a JSON document, one of each attachment a line, or numbers for monitoring")
}

// The values of --output, if it is given.
const (
	outputWide = "wide"
	outputJSON = "json"

	outputLines   = "jsonl"       // of ls
	outputMetrics = "openmetrics" // of ls
)

// knownOutput refuses an --output that the verb does not have.
func (o *options) knownOutput() error {
	value, _ := usageOf(o.set.Lookup("output"))
	formats := strings.Split(value, "|")
	if o.output == "" || slices.Contains(formats, o.output) {
		return nil
	}
	return fmt.Errorf("%s: --output %q: it must be %s", o.verb, o.output, strings.Join(formats, " or "))
}

// readInventory makes the inventory for a verb that prints it. It names broken entries, and what could not
// be read.
func (c *call) readInventory() (*inventory.Inventory, error) {
	if c.dirsErr != nil {
		return nil, c.dirsErr
	}
	v, err := inventory.New(c.cache(), c.describer())
	if err != nil {
		return nil, err
	}
	for _, b := range v.Broken {
		c.warn("cache: %v", b.Err())
	}
	for _, err := range v.Unread {
		c.warn("not read: %v", err)
	}
	return v, nil
}

// do lists the attachments, or the networks.
func (c *lsCall) do(ctx context.Context, operands []string) (exit int, err error) {
	if err := c.tooMany(operands, 1); err != nil {
		return 0, err
	}
	switch {
	case c.networks && len(operands) > 0:
		return 0, usage("ls: unexpected argument %q: --networks lists all", operands[0])
	case c.networks && c.output == outputLines:
		return 0, usage("ls: -o jsonl is of attachments: networks have -o json")
	case c.output == outputMetrics && (len(operands) > 0 || c.networks || c.checked || c.faults):
		return 0, usage("ls: -o openmetrics is about all attachments and networks, without CHECK")
	case c.output == outputMetrics:
		return c.printMetrics()
	}
	c.checked = c.checked || c.faults
	defer memory.CollectLess()()
	if c.checked {
		if err := c.prepare(); err != nil {
			return 0, err
		}
	}
	v, err := c.readInventory()
	if err != nil {
		return 0, err
	}
	c.all = entriesIn(v.Entries)
	if len(operands) == 1 && operands[0] == "networks" && !slices.ContainsFunc(c.knownNetworks(v), func(n *inventory.Network) bool { return n.Name == "networks" }) {
		if c.output == outputLines {
			return 0, usage("ls: -o jsonl is of attachments: networks have -o json")
		}
		c.warnFormer("networks", "--networks")
		c.networks, operands = true, nil
	}
	if len(operands) == 1 {
		c.about = operands[0]
		if _, v.Entries, err = v.ByName(operands[0], c.knownNetworks(v)); err != nil {
			return 0, err
		}
	}
	c.undone = len(v.Broken)+len(v.Unread) > 0
	if c.checked {
		var judged []*chain.Judgement
		v.Entries, judged = inventory.Judge(ctx, c.runner, v.Entries, c.patience())
		c.undone = c.undone || slices.ContainsFunc(judged, (*chain.Judgement).Undone)
	}
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if c.faults {
		v.Entries = slices.DeleteFunc(v.Entries, func(a *inventory.Entry) bool { return !a.Faulty() })
	}
	list := c.lsAttachments
	if c.networks {
		list = c.lsNetworks
	}
	if exit, err = list(ctx, v); exit != exitOK || err != nil {
		return exit, err
	}
	return c.end(nil)
}

func (c *lsCall) lsAttachments(ctx context.Context, v *inventory.Inventory) (exit int, err error) {
	if c.output == outputLines {
		return c.stream(ctx, v)
	}
	asked := v.Entries
	if c.output == "" { // the table shows only ports of what plugins hold, and most ports are those of the capability
		asked = inventory.Publishing(asked)
	}
	v.ReadHolds(ctx, asked)
	if c.output == outputJSON {
		return c.writeJSON(docOf(v, v.Entries))
	}
	s := c.screen()
	columns := []tty.Column{{Title: "NETWORK", Min: 7}, {Title: "NAME", Min: 8}, {Title: "IFACE", Min: 5}, {Title: "ADDRESS", Min: 15},
		{Title: "MAC", Optional: true}, {Title: "HOST"}, {Title: "PORTS", Min: 5}, {Title: "AGE"}, {Title: "STATE", Min: 12, Early: true}}
	if c.output == outputWide {
		s.Width = 0
		columns = append(columns, tty.Column{Title: "HOLDS"}, tty.Column{Title: "RUNTIME"}, tty.Column{Title: "CONTAINER"}, tty.Column{Title: "NETNS"})
	}
	var rows [][]string
	var faults strings.Builder // each a line below the table, never shortened, and commands below that
	if c.all == nil {
		c.all = entriesIn(v.Entries)
	}
	title, remedies := inventory.Titles(v.Entries), c.remedies(c.all)
	for _, a := range v.Entries {
		state := a.StateText()
		if c.output == "" && a.Fault != nil {
			state = a.Verdict
			remedy := remedies.For(&chain.Judgement{Entry: a.Entry, State: chain.StateFault, Err: a.Fault}, false)
			fmt.Fprintf(&faults, "%s: %s\n%s", title(a), spec.Printable(remedy.Line(a.FaultText())), remedy.Below())
		}
		row := []string{a.NetworkName, a.Name(), a.IfName, cell(a.Addresses(), bare), a.MAC(), a.HostLink,
			cell(a.Ports, spec.Port.Short), v.AgeText(a), state}
		if c.output == outputWide {
			row = append(row, strings.Join(otherHolds(a), "; "), a.Runtime(), a.ContainerID, a.NetNSPath())
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		c.nothing("nothing is attached: `cni-exec run -- sh` and `cni-exec add` attach something")
	}
	if exit, err = c.list(s, columns, rows); err != nil {
		return exit, err
	}
	return c.write(faults.String())
}

// otherHolds returns what plugins hold for an attachment, except what has its own column.
func otherHolds(a *inventory.Entry) (texts []string) {
	for _, h := range a.Holds {
		if h.Kind != spec.KindPort && h.Kind != spec.KindHostLink {
			texts = append(texts, h.Text)
		}
	}
	return texts
}

// stream writes one line with a document for each attachment. It reads what plugins hold for a few
// attachments at a time, so that the first line does not wait for the last attachment.
func (c *lsCall) stream(ctx context.Context, v *inventory.Inventory) (exit int, err error) {
	const few = 64
	c.documented = true
	for part := range slices.Chunk(v.Entries, few) {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		v.ReadHolds(ctx, part)
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		for i, a := range part {
			if err := e.Encode(attachmentOf(v, a)); err != nil {
				return 0, err
			}
			a.Holds, part[i] = nil, nil // not needed any more
		}
		if exit, err := c.write(string(spec.EscapeJSON([]byte(b.String())))); err != nil {
			return exit, err
		}
	}
	return exitOK, nil
}

// The types of the JSON documents, which docs/cni-exec.md describes. Lists are never null.
type (
	inventoryDoc struct {
		Attachments []attachmentDoc `json:"attachments"`
		Broken      []brokenDoc     `json:"broken"`
		NotTested   []string        `json:"notTested"`
	}

	attachmentDoc struct {
		ownerDoc
		MAC       string       `json:"mac"`
		HostLink  string       `json:"hostLink"`
		Bridge    string       `json:"bridge"`
		Ports     []spec.Port  `json:"ports"`
		Plugins   []string     `json:"plugins"`
		Since     *time.Time   `json:"since"`
		State     string       `json:"state"`
		Why       string       `json:"why"`
		Check     string       `json:"check"`
		Unchecked string       `json:"unchecked"`
		Faults    []string     `json:"faults"`
		File      string       `json:"file"`
		Holds     []chain.Held `json:"holds"`
	}

	brokenDoc struct {
		File  string `json:"file"`
		Error string `json:"error"`
	}
)

// docOf returns a document of some of the attachments, with all that was not read or tested.
func docOf(v *inventory.Inventory, list []*inventory.Entry) inventoryDoc {
	return inventoryDoc{attachmentDocs(v, list), each(v.Broken, broken), each(v.Unread, error.Error)}
}

func attachmentDocs(v *inventory.Inventory, list []*inventory.Entry) []attachmentDoc {
	return each(list, func(a *inventory.Entry) attachmentDoc { return attachmentOf(v, a) })
}

func broken(b chain.Broken) brokenDoc { return brokenDoc{b.Name(), b.Err().Error()} }

// attachmentOf returns the document of one attachment.
func attachmentOf(v *inventory.Inventory, a *inventory.Entry) attachmentDoc {
	d := attachmentDoc{
		ownerDoc: ownerOf(a), MAC: a.MAC(), HostLink: a.HostLink, Bridge: v.Bridge(a.Conf),
		Ports: notNull(a.Ports), Plugins: a.Conf.Types(), State: a.State, Why: a.Why,
		Check: a.Verdict, Unchecked: a.Unchecked, Faults: []string{}, File: a.File(), Holds: notNull(a.Holds),
	}
	if a.Fault != nil {
		d.Faults = append(d.Faults, a.FaultText())
	}
	if !a.Since.IsZero() {
		since := a.Since.UTC().Truncate(time.Second)
		d.Since = &since
	}
	return d
}

// knownNetworks returns those of --conf-dir and of the cache. It includes the default network if
// that was used, and no network is configured.
func (c *call) knownNetworks(v *inventory.Inventory) []*inventory.Network {
	return c.networksOf(v, c.warn)
}

// networksOf is knownNetworks with another way to name what cannot be read.
func (c *call) networksOf(v *inventory.Inventory, warn func(format string, args ...any)) []*inventory.Network {
	return v.Networks(c.confDir, func() *inventory.Network {
		if doc := defaultnet.Conf(v.Cache.Dir); doc != nil {
			return &inventory.Network{Name: defaultnet.Name, Conf: v.Conf(doc)}
		}
		return nil
	}, warn)
}

// The types of the documents of networks.
type (
	networksDoc struct {
		Networks []networkDoc `json:"networks"`
	}

	networkDoc struct {
		Network     string    `json:"network"`
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

// networkOf returns the document of a network.
func networkOf(v *inventory.Inventory, n *inventory.Network, pools []inventory.Pool) networkDoc {
	return networkDoc{
		Network: n.Name, File: n.File, CNIVersion: n.Conf.CNIVersion, Plugins: n.Conf.Types(), Bridge: v.Bridge(n.Conf),
		Pools: each(pools, poolOf), Attachments: len(n.Attached), Gone: n.Gone(), Faults: n.Faults(),
	}
}

func poolOf(p inventory.Pool) poolDoc {
	const exact = 1<<53 - 1 // the largest number that JSON readers decode without loss
	return poolDoc{each(p.Set, func(r ipam.Range) rangeDoc { return rangeDoc{r.Subnet, r.Start, r.End, r.Gateway} }),
		p.Used, min(p.Free, exact), notNull(p.Stale)}
}

func (c *lsCall) lsNetworks(_ context.Context, v *inventory.Inventory) (exit int, err error) {
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
		pools, err := v.Pools(n)
		if err != nil {
			c.warn("leases of network %s: %v", n.Name, err)
		}
		all.Networks = append(all.Networks, networkOf(v, n, pools))
		var subnets []string
		var used uint64
		stale, free := 0, uint64(math.MaxUint64) // an attachment uses an address of each set
		for _, p := range pools {
			used, stale, free = max(used, p.Used), max(stale, len(p.Stale)), min(free, p.Free)
			for _, r := range p.Set {
				subnets = append(subnets, r.Subnet.String())
			}
		}
		row := []string{n.Name, n.Conf.InterfacePlugin().Type, v.Bridge(n.Conf), strings.Join(subnets, ","),
			fmt.Sprint(used), count(free), fmt.Sprint(stale), fmt.Sprint(len(n.Attached)), fmt.Sprint(n.Gone())}
		if len(pools) == 0 || err != nil {
			row[4], row[5], row[6] = "", "", ""
		}
		if !v.StaleKnown() {
			row[6] = ""
		}
		if c.checked {
			faults := ""
			if n := n.Faults(); n != nil {
				faults = fmt.Sprint(*n)
			}
			row = append(row, faults)
		}
		if c.output == outputWide {
			row = append(row, strings.Join(n.Conf.Types(), ","), n.Conf.CNIVersion, n.File)
		}
		rows = append(rows, row)
	}
	if c.output == outputJSON {
		return c.writeJSON(all)
	}
	if len(rows) == 0 {
		c.nothing(fmt.Sprintf("no network is configured in %s: the built-in network %q is used", c.confDir, defaultnet.Name))
	}
	return c.list(s, columns, rows)
}

// count formats a number of addresses; for IPv6 the number is too large to be written.
func count(n uint64) string {
	if n >= 1<<32 {
		return "many"
	}
	return fmt.Sprint(n)
}
