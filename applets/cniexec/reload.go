package cniexec

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"cnibox/applets/attach"
	"cnibox/chain"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// reload restores what attachments had on the host, once or, with --watch, again and again.
func (c *call) reload(ctx context.Context, operands []string) (int, error) {
	if len(operands) > 1 {
		return 0, usage("reload: %q is one operand too many", operands[1])
	}
	if c.watch && len(operands) > 0 {
		return 0, usage("reload: --watch is for all attachments, so %q makes no sense with it", operands[0])
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.watch {
		return 0, c.watchAndReload(ctx)
	}
	defer nameThread()()
	entries, unread := c.runner.Entries()
	if len(operands) == 0 {
		_, err := c.restore(ctx, entries, unread)
		return 0, err
	}
	c.about = operands[0]
	err := unread
	if err == nil {
		entries, err = c.named(entries, operands[0])
	}
	if err != nil {
		return 0, err
	}
	alive, err := c.restore(ctx, entries, nil)
	if err == nil && alive == 0 {
		err = spec.Errorf(spec.CodeUnknown, "no attachment of %q is alive: `cni-exec ls` has the state of each", operands[0])
	}
	return 0, err
}

// named returns the entries of a network, or of a container as show names it.
func (c *call) named(entries []*chain.Entry, name string) ([]*chain.Entry, error) {
	network := slices.Contains(c.configured(), name)
	v := emptyInventory(c.runner.Cache, c.stateDir)
	for _, e := range entries {
		network = network || e.NetworkName == name
		v.entries = append(v.entries, v.read(e))
	}
	if network {
		return slices.DeleteFunc(entries, func(e *chain.Entry) bool { return e.NetworkName != name }), nil
	}
	found, err := v.find(name)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(entries, func(e *chain.Entry) bool { return e.ContainerID != found[0].ContainerID }), nil
}

// nameThread keeps this goroutine, which changes the rule set, on its thread and gives that the
// name of the program, by which --watch knows it. That of a program that was started as
// /proc/self/exe is "exe".
func nameThread() (release func()) {
	runtime.LockOSThread()
	name, err := unix.BytePtrFromString("cni-exec")
	if err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0) // at worst it reloads once more
	}
	return runtime.UnlockOSThread
}

// restore restores attachments, prints what could not be restored of each, and returns how many
// were alive. An error about entries that cannot be read is returned when the others are restored.
func (c *call) restore(ctx context.Context, entries []*chain.Entry, unread error) (int, error) {
	defer collectLess()()
	all, err := c.runner.Restore(attach.Remember(ctx), entries, &together{})
	if err == nil && len(all) == 0 {
		err = unread
	}
	if err != nil {
		return len(all), err
	}
	failed := 0
	external := map[string]int{}
	for _, r := range all {
		for _, err := range r.Errs {
			c.runner.Warn("reload %s: %v", r.Attachment, withDetails(err))
		}
		if len(r.Errs) > 0 {
			failed++
		}
		for _, plugin := range r.External {
			external[plugin]++
		}
	}
	for _, plugin := range slices.Sorted(maps.Keys(external)) {
		c.runner.Warn("plugin %s is another program: what it made on the host for %s is not restored", plugin, attachments(external[plugin]))
	}
	c.summarize("%s restored", attachments(len(all)-failed))
	err = unread
	if err == nil && failed > 0 {
		err = &hinted{err: spec.Errorf(spec.CodeCheck, "%s could not be restored in full", attachments(failed))} // why is above
	}
	return len(all), err
}

// summarize prints what was done, in one line: to stderr where stdout is for an error as JSON.
func (c *call) summarize(format string, args ...any) {
	to := c.Stdout
	if c.json {
		to = c.Stderr
	}
	fmt.Fprintln(to, spec.Printable(fmt.Sprintf(format, args...)))
}

// attachments is a number of them, in words.
func attachments(n int) string { return plural(n, "attachment") }

// plural is a number of things, in words.
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// together makes the rules of several attachments in one transaction.
type together struct{ rules nft.Collection }

var _ chain.Together = (*together)(nil)

// For returns a context in which updates of the rule set are collected.
func (t *together) For(ctx context.Context, report func(error)) context.Context {
	return t.rules.Collect(ctx, report)
}

// Make makes what was collected.
func (t *together) Make(ctx context.Context) { t.rules.Commit(ctx, nft.Open(rtnl.Host())) }
