package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// The states of an attachment. The first five are known without CHECK.
const (
	StateAlive       = "alive"       // its network namespace exists
	StateGone        = "gone"        // its network namespace is not at its path any more
	StateInterrupted = "interrupted" // its ADD ended before it was complete
	StateBusy        = "busy"        // a verb is at work for its container, or a GC for its network
	StateUnknown     = "unknown"     // the namespace is not recorded, may not be looked at, or is not at its path

	StateOK        = "ok"         // CHECK has found nothing
	StateFault     = "fault"      // it is not as ADD left it
	StateNotTested = "not tested" // CHECK was not run, or could not look at everything
)

// interrupted is why an attachment is [StateInterrupted].
const interrupted = "the add has ended before it was done"

// JudgeTime is the usual limit of [Runner.Judge].
const JudgeTime = 10 * time.Second

// A Judgement is what [Runner.Judge] has found out about an attachment. It has none of the states
// [StateAlive] and [StateUnknown].
type Judgement struct {
	*Entry
	State  string
	Err    error  // of a fault, and of some that are not tested: what a plugin said
	Why    string // why it is in its state, if there is no error
	Chosen bool   // not tested: its configuration has no CHECK
	Holder string // gone: a path of its namespace, which still exists; empty: not found
}

// Undone reports whether CHECK could not be made, so that there may be a fault.
func (j *Judgement) Undone() bool {
	return j.State == StateBusy || j.State == StateNotTested && !j.Chosen
}

// A judging is a [Runner.Judge] in progress.
type judging struct {
	*Runner
	limit time.Duration

	mu   sync.Mutex
	hung map[string]bool // external plugins that have not answered
}

// Judge runs CHECK of attachments, several at a time, and calls done with what it has found about
// each. Those that another verb has locked come last; all of them are waited for as long as limit
// together, and CHECK of each lasts as long at most. An attachment that is detached meanwhile is
// omitted. The error is the context's; done is not called with the remaining ones then.
func (r *Runner) Judge(ctx context.Context, entries []*Entry, limit time.Duration, done func(*Judgement)) error {
	verb := r.Once()
	verb.Session = session.NewForMany()
	defer verb.Session.Close()
	w := &judging{Runner: verb, limit: limit, hung: map[string]bool{}}
	var busy []*Entry
	var gone []*Judgement
	sort := func(j *Judgement) {
		if j.State == StateGone {
			gone = append(gone, j)
			return
		}
		done(j)
	}
	w.each(ctx, entries, time.Time{}, func(j *Judgement) {
		if j.State == StateBusy {
			busy = append(busy, j.Entry)
			return
		}
		sort(j)
	})
	w.each(ctx, busy, time.Now().Add(limit), sort)
	findHolders(gone)
	for _, j := range gone {
		done(j)
	}
	return context.Cause(ctx)
}

// each judges attachments, and waits for locks until a time; zero: not at all.
func (w *judging) each(ctx context.Context, entries []*Entry, until time.Time, done func(*Judgement)) {
	if len(entries) == 0 {
		return
	}
	found := make([]*Judgement, len(entries))
	w.ForEach(ctx, len(entries), func(i int) string { return entries[i].ContainerID },
		func(r *Runner, i int) { found[i] = w.judge(ctx, r, entries[i], time.Until(until)) },
		func(i int) {
			if found[i] != nil {
				done(found[i])
			}
		})
}

// judge judges one attachment; nil: it was detached, or ctx has ended.
func (w *judging) judge(ctx context.Context, r *Runner, e *Entry, wait time.Duration) *Judgement {
	j := &Judgement{Entry: e}
	j.State, j.Why = e.Namespace()
	if j.ended() || j.State == StateUnknown { // it may have been read in the middle of an ADD or DEL
		now, err := r.Cache.Lookup(e.Attachment())
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil {
			j.Entry = now
			j.State, j.Why = now.Namespace()
		}
	}
	switch {
	case j.ended() && w.Cache.Running(j.ContainerID):
		j.State, j.Why = StateBusy, "another verb runs for container "+j.ContainerID
		return j
	case j.Interrupted():
		j.State, j.Why = StateInterrupted, interrupted
		return j
	case j.State == StateGone:
		return j
	case j.State == StateUnknown:
		j.State = StateNotTested
		if ns, err := netns.Open(j.NetNSPath()); j.NetNSPath() != "" && err != nil {
			j.Err = err
		} else {
			ns.Close()
		}
		return j
	}
	l, err := j.ListOnce(r.Session)
	if err != nil {
		j.State, j.Err = StateFault, fmt.Errorf("cached configuration: %w", err)
		return j
	}
	if j.Why = w.unchecked(l); j.Why != "" {
		j.State, j.Chosen = StateNotTested, l.Unchecked() != ""
		return j
	}
	cache, own := *r.Cache, *r
	cache.LockTimeout, own.Cache = max(wait, 1), &cache // a lock that is free is taken at once
	within, cancel := context.WithTimeout(ctx, w.limit+max(wait, 0))
	defer cancel()
	err = own.Check(within, l, RuntimeConf{ContainerID: j.ContainerID, IfName: j.IfName})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil && within.Err() != nil {
		w.note(l)
		j.State, j.Why = StateNotTested, fmt.Sprintf("CHECK has not ended within %s", w.limit)
		return j
	}
	return r.verdict(j.Entry, err)
}

// ended reports whether the attachment seems to be one that is not used any more.
func (j *Judgement) ended() bool { return j.State == StateGone || j.Interrupted() }

// Verdict says what the answer of CHECK, an error or nil, means for an attachment.
func (r *Runner) Verdict(e *Entry, err error) *Judgement {
	j := r.verdict(e, err)
	if j == nil { // that is the error
		return &Judgement{Entry: e, State: StateFault, Err: err}
	}
	findHolders([]*Judgement{j})
	return j
}

// verdict is Verdict without a search for the namespace; nil: the attachment was detached.
func (r *Runner) verdict(e *Entry, err error) *Judgement {
	if err == nil {
		return &Judgement{Entry: e, State: StateOK}
	}
	var locked *lockedError
	if errors.As(err, &locked) {
		return &Judgement{Entry: e, State: StateBusy, Why: locked.busy}
	}
	now, missing := r.Cache.Lookup(e.Attachment())
	if errors.Is(missing, os.ErrNotExist) {
		return nil
	}
	if missing == nil {
		state, why := now.Namespace()
		switch {
		case now.Interrupted():
			return &Judgement{Entry: now, State: StateInterrupted, Why: interrupted}
		case state == StateGone:
			return &Judgement{Entry: now, State: state, Why: why}
		}
	}
	if errors.Is(err, os.ErrPermission) || spec.AsError(err).Code == spec.CodeTryAgain {
		return &Judgement{Entry: e, State: StateNotTested, Err: err}
	}
	return &Judgement{Entry: e, State: StateFault, Err: err}
}

// unchecked says why CHECK is not run with a list; empty: it is.
func (w *judging) unchecked(l *List) string {
	if why := l.Unchecked(); why != "" {
		return why
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range l.Plugins {
		if plugin := l.Plugins[i].Type; w.hung[plugin] {
			return "plugin " + plugin + " has not answered for another attachment"
		}
	}
	return ""
}

// note records that one of the external plugins of a list has not answered.
func (w *judging) note(l *List) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range l.Plugins {
		plugin := l.Plugins[i].Type
		if builtIn, err := w.Invoker.Find(plugin); err == nil && builtIn == nil {
			w.hung[plugin] = true
		}
	}
}

// findHolders looks for the namespaces of attachments that are gone: one exists without its path as long as
// a process is in it. Only entries of this program have the ID of theirs.
func findHolders(all []*Judgement) {
	var lost []*Judgement
	for _, j := range all {
		if j.State == StateGone && j.NetNSID != "" && j.SameBoot() {
			lost = append(lost, j)
		}
	}
	if len(lost) == 0 {
		return
	}
	_, _ = netns.Each(func(path string, ns *netns.NS) error { // after an error those are found that came before it
		for _, j := range lost {
			if ns != nil && j.Holder == "" && j.in(ns) {
				j.Holder = path
				j.Why += ", but " + HeldBy(path)
			}
		}
		return nil
	})
}

// HeldBy says who has the namespace at a path that [netns.Each] has found; any other text is where it is.
func HeldBy(path string) string {
	process, ok := strings.CutPrefix(path, "/proc/")
	pid, at, _ := strings.Cut(process, "/")
	switch {
	case !strings.HasPrefix(path, "/"):
		return "it is " + path
	case !ok:
		return "its namespace is mounted at " + path
	}
	if name, err := disk.Read("/proc/"+pid+"/comm", 0, maxComm); err == nil {
		pid += " (" + strings.TrimSpace(string(name)) + ")"
	}
	if strings.HasPrefix(at, "fd/") {
		return "process " + pid + " has its namespace open"
	}
	return "process " + pid + " is still in its namespace"
}

// maxComm limits the name of a process, in bytes; the kernel has 16.
const maxComm = 64
