package cniexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cnibox/applets/cniexec/inventory"
	"cnibox/applets/record"
	"cnibox/chain"
	"cnibox/internal/memory"
	"cnibox/internal/tty"
	"cnibox/spec"
)

func gcVerb() *verb {
	return &verb{name: "gc", operands: "NETWORK | --all-networks", summary: "delete attachments that are not needed", new: func(c *call) action { return &gcCall{call: c} },
		text: `What stays must be named: with --valid, --valid-live or --keep-none.
What is deleted is printed. An attachment that is in another --cache-dir is
alive if its link leads to a namespace that exists, or one has its link or
leased address.`,
		examples: []example{
			{"cni-exec gc mynet --valid-live --dry-run", "what is left of namespaces that are gone"},
			{"cni-exec gc --all-networks --valid-live", "delete them on all networks"},
		},
	}
}

// A gcCall is one call of gc.
type gcCall struct {
	*call
	valid                               []string
	live, keepNone, allNetworks, dryRun bool

	deleted []spec.Attachment
	title   func(spec.Attachment) string // of what gc deletes; for text output
}

func (c *gcCall) flags(f *flagSet) {
	f.StringArrayVar(&c.valid, "valid", nil, "`ID/IFNAME` keep this attachment; repeatable")
	f.BoolVar(&c.live, "valid-live", false, "keep all whose namespace exists, also those without an entry in the cache, and what an unreadable entry is about")
	f.BoolVar(&c.keepNone, "keep-none", false, "delete every one")
	f.BoolVar(&c.dryRun, "dry-run", false, "only print what would be deleted")
	f.BoolVar(&c.allNetworks, "all-networks", false, "every network that is configured or has attachments, in place of NETWORK")
}

func (c *gcCall) do(ctx context.Context, operands []string) (int, error) {
	if err := cmp.Or(c.allOr(c.allNetworks, operands, 2), c.gcOperands()); err != nil {
		return 0, usage("gc: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.allNetworks {
		return exitOK, c.gcAll(ctx)
	}
	l, err := c.load()
	if err != nil {
		return 0, err
	}
	err = c.gc(ctx, l)
	c.problem("gc", err)
	return exitOK, c.report(ctx, c.doc(), err)
}

// A gcDoc is the document of gc.
type gcDoc struct {
	DryRun  bool             `json:"dryRun"`
	Deleted []attachmentName `json:"deleted"` // with dryRun what would be deleted
	foundDoc
}

func (c *gcCall) doc() gcDoc { return gcDoc{c.dryRun, each(c.deleted, nameOf), c.found()} }

// gcOperands requires a flag for what is valid, so that gc does not delete everything by mistake.
// cnitool's gc is --keep-none.
func (c *gcCall) gcOperands() error {
	said := 0
	for _, b := range []bool{len(c.valid) > 0, c.live, c.keepNone} {
		if b {
			said++
		}
	}
	switch {
	case said == 0:
		return errors.New("what is still attached? give --valid ID/IFNAME for each attachment, or --valid-live, or --keep-none to delete every one")
	case c.keepNone && said > 1:
		return errors.New("--keep-none keeps nothing, so --valid and --valid-live make no sense with it")
	}
	_, err := c.validSet()
	return err
}

// validSet returns the attachments in --valid. It checks their names, since they are compared with
// those of files.
func (c *gcCall) validSet() ([]spec.Attachment, error) {
	var set []spec.Attachment
	for _, s := range c.valid {
		id, ifName, ok := strings.Cut(s, "/")
		if !ok {
			return nil, fmt.Errorf("--valid %q is not ID/IFNAME", s)
		}
		if err := errors.Join(spec.CheckContainerID(id), spec.CheckIfName(ifName)); err != nil {
			return nil, fmt.Errorf("--valid %q: %w", s, err)
		}
		set = append(set, spec.Attachment{Network: c.network, ContainerID: id, IfName: ifName})
	}
	return set, nil
}

// gc deletes what neither --valid nor --valid-live names, and lists it on stderr.
func (c *gcCall) gc(ctx context.Context, l *chain.List) error {
	defer memory.CollectLess()()
	valid, err := c.validSet()
	if err != nil {
		return err
	}
	bar := tty.NewProgress(c.Stderr, "cni-exec: gc "+c.network)
	warn := c.runner.Warn
	defer func() { c.runner.Warn = warn }()
	c.runner.Progress = bar.Show
	c.runner.Warn = func(format string, args ...any) {
		bar.Clear()
		warn(format, args...)
	}
	stale, err := c.runner.GC(ctx, l, chain.GCOptions{Valid: valid, Live: c.live, DryRun: c.dryRun, Owners: c.owners})
	bar.Clear()
	done := "deleted"
	if c.dryRun {
		done = "would delete"
	}
	for _, a := range stale {
		c.runner.Warn("%s %s", done, c.title(a))
	}
	c.deleted = append(c.deleted, stale...)
	return err
}

// owners is [chain.GCOptions.Owners]. Without --valid-live the owners need not be alive.
func (c *gcCall) owners(l *chain.List, entries []*chain.Entry) ([]chain.Owner, error) {
	c.title = titlesOf(entries, nil)
	doc, err := l.Effective()
	if err != nil {
		return nil, err
	}
	conf := inventory.Empty(c.runner.Cache, c.describer()).Conf(doc)
	s, err := inventory.SearchOwners(l.Name, conf, recordDirs(conf), entries, c.live)
	if err != nil {
		return nil, err
	}
	var all []chain.Owner
	for _, o := range s.Found {
		all = append(all, *o)
	}
	c.title = titlesOf(entries, all)
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
	return c.report(ctx, c.doc(), err)
}
