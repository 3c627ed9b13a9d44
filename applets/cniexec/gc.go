package cniexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

func gcVerb() *verb {
	return &verb{name: "gc", group: "Attach", operands: "[NETWORK]", summary: "delete attachments whose container is gone", new: func(c *call) action { return &gcCall{call: c} },
		text: `Without NETWORK of every network that is configured or has attachments. What is
deleted and what is kept is printed. Attachments without a cache entry are kept
while a namespace has their link or address, and so is what an unreadable entry
is about. cnitool's gc is gc --all.`,
		examples: []example{
			{"cni-exec gc --dry-run", "what is left of namespaces that are gone"},
			{"cni-exec gc mynet --all --keep c1/eth0", "every attachment of a network but one"},
		},
	}
}

// A gcCall is one call of gc.
type gcCall struct {
	*call
	keep        []string
	all, dryRun bool

	// of an earlier release:
	valid                       []string
	live, keepNone, allNetworks bool

	deleted []spec.Attachment
	kept    []string                     // titles
	present map[spec.Attachment]string   // what gc has found on the network, with titles
	title   func(spec.Attachment) string // of what gc deletes; for text output
}

func (c *gcCall) flags(f *flagSet) {
	f.names(&c.keep, "keep", "`ID/IFNAME` keep this attachment, whatever it is; repeatable")
	f.BoolVar(&c.all, "all", false, "delete also what is alive, but what --keep names")
	f.BoolVar(&c.dryRun, "dry-run", false, "only print what would be deleted")
	f.names(&c.valid, "valid", "`ID/IFNAME`")
	f.former("valid", "write --all --keep; without --all gc keeps what is alive")
	f.BoolVar(&c.live, "valid-live", false, "")
	f.former("valid-live", "leave it out, gc keeps what is alive")
	f.BoolVar(&c.keepNone, "keep-none", false, "")
	f.former("keep-none", "write --all")
	f.BoolVar(&c.allNetworks, "all-networks", false, "")
	f.former("all-networks", "leave it out, gc without NETWORK is about all")
}

func (c *gcCall) do(ctx context.Context, operands []string) (int, error) {
	every := len(operands) == 0 || c.allNetworks
	if err := cmp.Or(c.allOr(every, operands, 2), c.gcOperands()); err != nil {
		return 0, usage("gc: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if every {
		return exitOK, c.gcAll(ctx)
	}
	l, err := c.load(c.target)
	if err != nil {
		return 0, err
	}
	err = c.gc(ctx, l)
	c.problem(c.target, "gc", err)
	c.printKept(err)
	return exitOK, c.document(ctx, c.doc(), err)
}

// A gcDoc is the document of gc.
type gcDoc struct {
	DryRun  bool             `json:"dryRun"`
	Deleted []attachmentName `json:"deleted"` // with dryRun what would be deleted
	findingsDoc
}

func (c *gcCall) doc() gcDoc { return gcDoc{c.dryRun, each(c.deleted, nameOf), c.found()} }

// gcOperands translates the flags of an earlier release, and checks those for what is kept.
func (c *gcCall) gcOperands() error {
	if c.keepNone && (len(c.valid) > 0 || c.live) {
		return errors.New("--keep-none cannot be combined with --valid and --valid-live")
	}
	if c.all && c.live {
		return errors.New("--all and --valid-live cannot be combined")
	}
	c.all = c.all || c.keepNone || len(c.valid) > 0 && !c.live
	_, err := c.validSet("")
	return err
}

// validSet returns the attachments to a network in --keep. It checks their names, since they are compared with
// those of files.
func (c *gcCall) validSet(network string) ([]spec.Attachment, error) {
	var set []spec.Attachment
	for _, s := range slices.Concat(c.keep, c.valid) {
		id, ifName, ok := strings.Cut(s, "/")
		if !ok {
			return nil, fmt.Errorf("--keep %q is not ID/IFNAME", s)
		}
		if err := errors.Join(spec.CheckContainerID(id), spec.CheckIfName(ifName)); err != nil {
			return nil, fmt.Errorf("--keep %q: %w", s, err)
		}
		set = append(set, spec.Attachment{Network: network, ContainerID: id, IfName: ifName})
	}
	return set, nil
}

// gc deletes what is neither alive nor in --keep, and lists it on stderr.
func (c *gcCall) gc(ctx context.Context, l *chain.List) error {
	defer memory.CollectLess()()
	valid, err := c.validSet(l.Name)
	if err != nil {
		return err
	}
	bar := tty.NewProgress(c.Stderr, "cni-exec: gc "+l.Name)
	warn := c.runner.Warn
	defer func() { c.runner.Warn = warn }()
	c.runner.Progress = bar.Show
	c.runner.Warn = func(format string, args ...any) {
		bar.Clear()
		warn(format, args...)
	}
	stale, err := c.runner.GC(ctx, l, chain.GCOptions{Valid: valid, Live: !c.all, DryRun: c.dryRun, Owners: c.owners})
	bar.Clear()
	done := "deleted"
	if c.dryRun {
		done = "would delete"
	}
	for _, a := range stale {
		c.runner.Warn("%s %s", done, c.title(a))
	}
	c.deleted = append(c.deleted, stale...)
	for _, a := range stale {
		delete(c.present, a)
	}
	if err == nil {
		c.kept = append(c.kept, slices.Sorted(maps.Values(c.present))...)
	}
	c.present = nil
	return err
}

// printKept prints what gc has kept; err is that of gc.
func (c *gcCall) printKept(err error) {
	switch {
	case len(c.kept) > 0:
		c.summarize("%s kept: %s", tty.Plural(len(c.kept), "attachment"), tty.Several(c.kept))
	case len(c.deleted) == 0 && err == nil:
		c.nothing("nothing to delete: no attachment is left of a container")
	}
}

// owners is [chain.GCOptions.Owners]. With --all the owners need not be alive.
func (c *gcCall) owners(l *chain.List, entries []*chain.Entry) ([]chain.Owner, error) {
	c.title = titlesOf(entries, nil)
	doc, err := l.Effective()
	if err != nil {
		return nil, err
	}
	conf := inventory.Empty(c.runner.Cache, c.describer()).Conf(doc)
	s, err := inventory.SearchOwners(l.Name, conf, recordDirs(conf), entries, !c.all)
	if err != nil {
		return nil, err
	}
	var all []chain.Owner
	for _, o := range s.Found {
		all = append(all, *o)
	}
	c.title = titlesOf(entries, all)
	c.present = map[spec.Attachment]string{}
	for _, e := range entries {
		c.present[e.Attachment()] = c.title(e.Attachment())
	}
	for _, o := range all {
		if o.IfName != "" { // else it is a lease, whose interface is not known
			c.present[o.Attachment] = c.title(o.Attachment)
		}
	}
	slices.SortFunc(all, func(a, b chain.Owner) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// titlesOf is [chain.Titles] for the attachments of entries, and for owners that may have no entry.
func titlesOf(entries []*chain.Entry, owners []chain.Owner) func(spec.Attachment) string {
	all := make(map[spec.Attachment]*chain.Entry)
	for _, o := range owners {
		all[o.Attachment] = chain.EntryOf(o.Attachment)
	}
	for _, e := range entries {
		all[e.Attachment()] = e
	}
	title := chain.Titles(slices.Collect(maps.Values(all)))
	return func(a spec.Attachment) string { return title(cmp.Or(all[a], chain.EntryOf(a))) }
}

// recordDirs returns the directories with the records of a network's plugins.
func recordDirs(conf *inventory.Conf) (dirs []record.Dir) {
	for _, s := range conf.Stored {
		for _, dir := range s.Records {
			if dir != "" {
				dirs = append(dirs, record.Dir(dir))
			}
		}
	}
	return dirs
}

// gcAll runs gc for every network that is configured or has attachments.
func (c *gcCall) gcAll(ctx context.Context) error {
	names, err := c.networks(true)
	if err != nil {
		return err
	}
	err = c.eachList(ctx, names, c.gc, "gc is not complete on %d of %d networks")
	c.printKept(err)
	return c.document(ctx, c.doc(), err)
}
