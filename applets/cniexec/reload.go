package cniexec

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/doctor"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/cniexec/watch"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

func reloadVerb() *verb {
	return &verb{name: "reload", group: "Repair", operands: "[ID|NETWORK]", summary: "restore what the host has lost", new: func(c *call) action { return &reloadCall{call: c} },
		text: `After nft flush ruleset, a deleted bridge or the like: bridges, ports and their
flags, addresses of the host, settings, rules, limits and leases come back as
add made them, and in the containers the interface is up again, with addresses
and routes. A line for each attachment says what was done. CHECK runs after it;
what is NOT restored is named, and the exit code is 1; it is 3 if another verb
was at work for 10 s (--timeout). Without an operand, attachments and leases of
earlier boots are deleted first, and where nothing is alive, as at the boot, the
bridges of all configured networks are made.`,
		examples: []example{
			{"cni-exec reload", "all attachments, also once at each boot"},
			{"cni-exec reload mynet", "those of one network, or of one container"},
		},
	}
}

// A reloadCall is one call of reload.
type reloadCall struct {
	*call
	watch   bool
	metrics string // a file; empty: none is written

	deleted []attachmentName // of earlier boots
	bridges []string         // networks whose bridge exists
}

func (c *reloadCall) flags(f *flagSet) {
	f.BoolVar(&c.watch, "watch", false, "stay, and do it again whenever rules, a bridge, its address or a lease are deleted, forwarding is set to 0, or firewalld is started or reloaded")
	f.name(&c.metrics, "metrics", "", "`FILE` with --watch: keep there what ls -o openmetrics prints and how often it has repaired, for node_exporter")
}

// do restores what attachments have lost, once or, with --watch, after each event.
func (c *reloadCall) do(ctx context.Context, operands []string) (int, error) {
	if err := c.tooMany(operands, 1); err != nil {
		return 0, err
	}
	if c.watch && len(operands) > 0 {
		return 0, usage("reload: unexpected argument %q: --watch is for all attachments", operands[0])
	}
	if c.metrics != "" && !c.watch && !c.watched() {
		return 0, usage("reload: --metrics is for --watch: without it, `cni-exec ls -o openmetrics` prints them")
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.watch {
		return 0, c.watchAndReload(ctx)
	}
	if len(operands) == 0 {
		err := c.reloadAll(ctx)
		if c.metrics != "" {
			if err := c.writeMetrics(c.restored); err != nil {
				c.runner.Warn("metrics: %v", err)
			}
		}
		return c.end(c.reportRestored(ctx, err))
	}
	c.about = operands[0]
	entries, _, _, err := c.entriesNamed(operands[0])
	if err != nil {
		return 0, err
	}
	alive, err := c.restore(ctx, entries, nil, c.sayOutcome)
	if err == nil && alive == 0 {
		return 0, spec.Errorf(spec.CodeUnknown, "no attachment of %q is alive: `cni-exec ls` has the state of each", operands[0])
	}
	return c.end(c.reportRestored(ctx, err))
}

// reloadAll restores all attachments. Unless --watch has started it, it deletes those of earlier boots
// before, and makes the bridges of all networks where none is alive.
func (c *reloadCall) reloadAll(ctx context.Context) error {
	if c.watched() {
		entries, _, unread := c.runner.Entries()
		_, err := c.restore(ctx, entries, unread, c.sayOutcome)
		return err
	}
	deleted, failed := c.deleteEarlier(ctx)
	entries, _, unread := c.runner.Entries()
	alive, err := c.restore(ctx, entries, unread, c.sayOutcome)
	c.deleted = each(deleted, nameOf)
	var did []string
	if len(deleted) > 0 {
		did = append(did, earlierText(deleted))
	}
	if alive == 0 && unread == nil && err == nil {
		if c.bridges, err = c.makeBridges(ctx); len(c.bridges) > 0 {
			did = append(did, bridgesText(c.bridges))
		}
	}
	switch {
	case len(did) > 0:
		c.summarize("%s", strings.Join(did, ", "))
	case alive == 0:
		c.summarize("nothing to do: no attachment is alive")
	}
	if failed != nil && err != nil && unread == nil {
		c.runner.Warn("reload: %v", hint.Line(failed))
	}
	return cmp.Or(context.Cause(ctx), err, failed)
}

type (
	// A reloadDoc is the document of reload.
	reloadDoc struct {
		Attachments []restoredDoc    `json:"attachments"` // live ones
		Deleted     []attachmentName `json:"deleted"`     // of earlier boots
		Bridges     []string         `json:"bridges"`     // networks whose bridge exists, where nothing is alive
		Cause       string           `json:"cause"`       // the event that --watch has seen; empty: --watch has not started this reload
		findingsDoc
	}

	restoredDoc struct {
		attachmentName
		NetNS     string   `json:"netns"`
		Did       []string `json:"did"`       // as in the printed lines
		Unchecked string   `json:"unchecked"` // why CHECK was not run; empty: it was run
		External  []string `json:"external"`  // external plugins, whose part is not restored

		failed bool
	}
)

// restoredOf returns the document of one attachment.
func restoredOf(r *chain.Restored) restoredDoc {
	return restoredDoc{nameOf(r.Attachment()), r.NetNSPath(), notNull(r.Did), r.Unchecked, notNull(r.External), len(r.Errs) > 0}
}

// reportRestored writes the document of reload. A reload that --watch has started prints nothing if
// it had nothing to do.
func (c *reloadCall) reportRestored(ctx context.Context, err error) error {
	doc := reloadDoc{notNull(c.restored), notNull(c.deleted), notNull(c.bridges), c.cause(), c.found()}
	if c.watched() && len(c.findings) == 0 && !slices.ContainsFunc(doc.Attachments, func(r restoredDoc) bool { return len(r.Did) > 0 }) {
		return err
	}
	return c.document(ctx, doc, err)
}

// restore restores attachments, says a line about each that was changed or is gone, and returns the
// number of live ones. It returns an error about unreadable entries after it has restored the others.
func (c *call) restore(ctx context.Context, entries []*chain.Entry, unread error, say func(line string, remedy hint.Remedy)) (alive int, err error) {
	defer memory.CollectLess()()
	if !c.watched() { // no event would start another reload
		c.runner.Cache.LockTimeout = c.patience()
	}
	failed := 0
	external, seen := map[string]int{}, map[spec.Attachment]bool{}
	title, remedies := chain.Titles(entries), c.remedies(nil)
	c.problem(target{}, "cache", unread)
	s := session.NewForMany()
	defer s.Close()
	nft.Rebuild(s)
	err = c.runner.Restore(ctx, entries, s, func(r *chain.Restored) {
		alive++
		seen[r.Attachment()] = true
		if len(r.Errs) > 0 {
			failed++
		}
		for _, plugin := range r.External {
			external[plugin]++
		}
		c.restored = append(c.restored, restoredOf(r))
		for _, err := range r.Errs {
			j := &chain.Judgement{Entry: r.Entry, State: chain.StateFault, Err: err}
			c.findings = append(c.findings, doctor.Judged(j, remedies.For(j, true)))
		}
		if r.Busy {
			c.undone = true
			c.notTested = append(c.notTested, spec.Printable(title(r.Entry)+": "+r.Unchecked))
		}
		text, remedy := outcome(r, remedies)
		switch {
		case !c.watched():
			say(title(r.Entry)+": "+text, remedy)
		case len(r.Did)+len(r.Errs) > 0 || r.Busy:
			say(title(r.Entry)+": "+text+" ("+c.cause()+")", remedy)
		}
	})
	if err == nil && !c.watched() {
		var lost int
		lost, err = c.judgeOthers(ctx, entries, seen, say)
		alive, failed = alive+lost, failed+lost
	}
	switch {
	case err != nil:
		return alive, err
	case alive == 0:
		return 0, unread
	}
	for _, plugin := range slices.Sorted(maps.Keys(external)) {
		c.runner.Warn("plugin %s is an external program: what it made for %s is not restored", plugin, tty.Plural(external[plugin], "attachment"))
	}
	err = unread
	if err == nil && failed > 0 {
		err = &hint.Error{Err: spec.Errorf(spec.CodeCheck, "%d of %s could not be restored", failed, tty.Plural(alive, "attachment"))} // the lines above have the reasons
	}
	return alive, err
}

// judgeOthers says a line about each attachment of which nothing can be restored. It returns the number of
// those whose namespace exists, but not at its path.
func (c *call) judgeOthers(ctx context.Context, entries []*chain.Entry, alive map[spec.Attachment]bool, say func(line string, remedy hint.Remedy)) (lost int, err error) {
	others := slices.DeleteFunc(slices.Clone(entries), func(e *chain.Entry) bool { return alive[e.Attachment()] })
	title, remedies := chain.Titles(entries), c.remedies(nil)
	err = c.runner.Judge(ctx, others, c.patience(), func(j *chain.Judgement) {
		switch {
		case j.Undone():
			c.untested(title, j)
			return
		case j.State != chain.StateGone && j.State != chain.StateInterrupted:
			return // it has been attached meanwhile
		}
		remedy := remedies.For(j, true)
		text := remedy.Line(hint.Text(j))
		if j.Holder != "" {
			lost++
			text = "NOT restored: " + text
			c.findings = append(c.findings, doctor.Judged(j, remedy))
		}
		say(title(j.Entry)+": "+text, remedy)
	})
	return lost, err
}

// outcome returns a line about what reload has done for an attachment, and what is left to do.
func outcome(r *chain.Restored, remedies hint.Remedies) (text string, remedy hint.Remedy) {
	text = strings.Join(r.Did, ", ")
	switch {
	case r.Busy:
		j := &chain.Judgement{Entry: r.Entry, State: chain.StateBusy, Why: r.Unchecked}
		remedy = remedies.For(j, true)
		return remedy.Line(hint.Text(j)), remedy
	case len(r.Errs) > 0:
		if text != "" {
			text += "; "
		}
		j := &chain.Judgement{Entry: r.Entry, State: chain.StateFault, Err: r.Errs[0]}
		remedy = remedies.For(j, true)
		text += "NOT restored: " + remedy.Line(strings.Join(each(r.Errs, hint.Reason), "; "))
	case text == "":
		text = "nothing to do"
	}
	if r.Unchecked != "" {
		text += " (not tested: " + r.Unchecked + ")"
	}
	return text, remedy
}

// watchAndReload reloads after each event, until a signal ends it.
func (c *reloadCall) watchAndReload(ctx context.Context) error {
	sockets, err := watch.BusSockets(c.Getenv(spec.SystemBusEnv))
	if err != nil {
		return err
	}
	w := watch.Watch{
		Sockets: sockets, Lacking: c.lacking, Reload: c.reloadAside, Warn: c.runner.Warn,
		ConfDir: c.confDir, LeaseDirs: c.leaseDirs, Leased: c.leased,
	}
	if c.metrics != "" {
		if err := c.writeMetrics(nil); err != nil { // before it begins: an error of the file is one of the call
			return err
		}
		w.Every = func(context.Context) {
			if err := c.writeMetrics(nil); err != nil {
				c.runner.Warn("metrics: %v", err)
			}
		}
	}
	return w.Run(ctx)
}

// leaseDirs returns the directories in which host-local stores the leases of networks that are
// configured or have attachments, each with its network.
func (c *reloadCall) leaseDirs() (dirs []string) {
	defer memory.Free()
	v, err := c.readInventory()
	if err != nil {
		c.runner.Warn("reload: %v", err)
		return nil
	}
	for _, n := range c.knownNetworks(v) {
		if dir := n.Conf.Leases(); dir != "" {
			dirs = append(dirs, filepath.Join(dir, n.Name))
		}
	}
	return dirs
}

// leased reports whether a live attachment has an address.
func (c *reloadCall) leased(l watch.Lease) bool {
	defer memory.Free()
	address := []byte(`"` + l.Addr.String() + `/`)
	entries, _, err := c.runner.Cache.Search(func(text []byte) bool { return bytes.Contains(text, address) })
	if err != nil {
		c.runner.Warn("reload: %v", err)
	}
	return slices.ContainsFunc(entries, func(e *chain.Entry) bool { return e.Attachment().Network == l.Network && e.Live() })
}

// lacking is [watch.Watch.Lacking]. Of what a verb deletes, no live attachment lacks
// anything.
func (c *reloadCall) lacking(deleted []nft.Part) (lacking bool, busy []nft.Part) {
	defer memory.Free()
	missing, err := nft.Open(netns.Host()).Missing(deleted)
	if len(missing) == 0 {
		if err != nil {
			c.runner.Warn("reload: %v", err)
		}
		return err != nil, nil
	}
	entries, _, err := c.runner.Cache.Search(func(text []byte) bool {
		return slices.ContainsFunc(missing, func(p nft.Part) bool { return p.MayBeIn(text) })
	})
	if err != nil {
		c.runner.Warn("reload: %v", err)
	}
	v := inventory.Empty(c.runner.Cache, c.describer())
	for _, e := range entries {
		a := v.Read(e)
		its := func(p nft.Part) bool { return p.Of(e.Attachment(), each(a.Addresses(), netip.Prefix.Addr)) }
		switch {
		case !slices.ContainsFunc(missing, its) || !e.Live():
		case c.runner.Cache.Running(e.ContainerID):
			busy = append(busy, slices.DeleteFunc(slices.Clone(missing), func(p nft.Part) bool { return !its(p) })...)
		default:
			lacking = true
		}
	}
	return lacking, busy
}

// watchedVar is set for a reload that --watch has started, to the event before it. Such a reload
// prints the event with what it has repaired or could not repair, and nothing if there is nothing
// to do.
const watchedVar = "CNIBOX_RELOAD_WATCHED"

// cause returns the event before a reload that --watch has started; empty: --watch has not started
// it.
func (c *call) cause() string { return c.Getenv(watchedVar) }

// watched reports whether --watch has started this reload.
func (c *call) watched() bool { return c.cause() != "" }

// reloadAside runs reload with the flags of this call; why is the event before it. A signal ends
// that too.
func (c *reloadCall) reloadAside(ctx context.Context, why string) {
	// The thread that has started the program must not end before the program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals := make(chan os.Signal, 1)
	defer context.AfterFunc(ctx, func() { signals <- unix.SIGTERM })()
	once := slices.DeleteFunc(slices.Clone(c.args), func(arg string) bool { return arg == "--watch" || strings.HasPrefix(arg, "--watch=") })
	command := program.Command{
		Args: append([]string{"cni-exec"}, once...), Self: true, Environ: append(sandbox.Unset(c.Environ, watchedVar), watchedVar+"="+why),
		Stdin: strings.NewReader(""), Stdout: c.Stdout, Stderr: c.Stderr, Signals: signals,
	}
	if _, err := command.Run(); err != nil {
		c.runner.Warn("reload: %v", err)
	}
}
