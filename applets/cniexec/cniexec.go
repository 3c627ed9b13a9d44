// Package cniexec is the tool cni-exec: runtime: attach network namespaces, and run commands in
// one.
package cniexec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/defaultnet"
	"github.com/cnibox/cnibox/applets/cniexec/doctor"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the tool.
var Applet = applet.Applet{
	Name:    "cni-exec",
	Summary: "runtime: attach network namespaces, and run commands in one",
	Main:    run,
}

// The exit codes of cni-exec are cnitool's, one for a wrong command line, and one for an incomplete answer.
const (
	exitOK = iota
	exitError
	exitUsage
	exitUndone // nothing wrong was found, but not everything could be looked at
)

// A call is one call of cni-exec: what was typed, what it is about, and what has come of it.
type call struct {
	applet.Process
	options
	target target // of the error and the line in the log; what the verb has not read yet is empty
	report

	runner  *chain.Runner // nil before prepare
	configs *chain.Dir    // read once while a verb is about several networks; else nil
	warner  *lint.Linter  // nil before warnOf
}

// A target is an attachment and the arguments of its plugins, a network, or a namespace: what is
// empty is not named.
type target struct {
	network string
	chain.RuntimeConf
}

// attachment returns the names of the attachment.
func (t *target) attachment() spec.Attachment {
	return spec.Attachment{Network: t.network, ContainerID: t.ContainerID, IfName: t.IfName}
}

// A report is what a call has found and done, for its document, its errors and its exit code.
type report struct {
	about      string           // operand with which errors begin; empty: the network of the target
	speaks     spec.Version     // cniVersion of the network; zero before it is known
	documented bool             // stdout has the document of -o json
	findings   []doctor.Finding // of -o json
	restored   []restoredDoc
	notTested  []string // with the reasons
	undone     bool     // something could not be looked at, against what was asked
}

// run is the program: verb, network, namespace, flags. Before anything is opened, a wrong verb,
// operand or flag is exit code 2; every later error is 1.
func run(ctx context.Context, p applet.Process) int {
	if len(p.Args) == 0 {
		p.Args = []string{"help"}
	}
	if p.Args[0] == completeVerb {
		return complete(p, p.Args[1:])
	}
	c, a, err := parse(p)
	var exit int
	v := findVerb(c.verb)
	switch {
	case err != nil && v == nil && c.verb != "" && !strings.HasPrefix(p.Args[0], "-"):
		err = unknownVerb(c.verb)
	case err != nil:
		err = usageError{err}
	case c.version:
		exit, err = c.printVersion()
	case c.help:
		exit, err = c.printHelp(ctx, c.operands[:min(1, len(c.operands))])
	case c.verb == "":
		err = usage("no verb")
	case v == nil:
		err = unknownVerb(c.verb)
	case c.command != nil && !v.command:
		err = usage("%s takes no command: only run and enter do", c.verb)
	default:
		if err = c.knownOutput(); err != nil {
			err = usageError{err}
			break
		}
		c.warnOfFormer(v)
		exit, err = a.do(ctx, c.operands[1:])
	}
	if v != nil && v.name != "help" && !c.version && !c.help {
		c.logSubject()
	}
	if v != nil && v.name == "hook" && err != nil {
		c.logHook(err)
	}
	var wrong usageError
	var several *inventory.SeveralError
	switch {
	case errors.As(err, &several):
		return c.wrongCall(fmt.Errorf("%s: %w", c.verb, several))
	case errors.As(err, &wrong):
		return c.wrongCall(wrong.error)
	case err != nil:
		return max(c.fail(err), exit)
	}
	return exit
}

// logSubject sets the subject of the call in the log. Only verbs with --container-id concern one
// container, and only enter one namespace.
func (c *call) logSubject() {
	s := applet.Subject{Verb: c.verb, Network: c.target.network}
	if f := c.set.Lookup("dry-run"); f != nil && f.Changed && f.Value.String() == "true" {
		s.Verb += " --dry-run"
	}
	one := c.set.Lookup("container-id") != nil || c.verb == "hook"
	if one {
		s.ContainerID, s.IfName = c.target.ContainerID, c.target.IfName
	}
	if one || c.verb == "enter" {
		s.NetNS = c.target.NetNS
	}
	c.Log.About(s)
}

// networkOperands reads NETWORK and NETNS, at most so many. Like cnitool it requires a namespace
// for gc and status too, and does not use it. The runner checks that the namespace exists.
func (c *call) networkOperands(operands []string, most int) error {
	switch {
	case len(operands) == 0, operands[0] == "":
		return errors.New("NETWORK is missing")
	case len(operands) > most:
		return fmt.Errorf("unexpected argument %q", operands[most])
	}
	c.target.network = operands[0]
	if len(operands) > 1 && operands[1] != "" {
		path, err := sandbox.NetNSPath(operands[1])
		if err != nil {
			return err
		}
		c.target.NetNS = path
	}
	return nil
}

// allOr is networkOperands for a verb with --all, which then takes no operands.
func (c *call) allOr(all bool, operands []string, most int) error {
	switch {
	case !all:
		return c.networkOperands(operands, most)
	case len(operands) > 0:
		return fmt.Errorf("unexpected argument %q: it is done for all", operands[0])
	}
	return nil
}

// prepare creates the runner, and completes the target from the environment. Errors have code 4 or
// 7.
func (c *call) prepare() error {
	if c.dirsErr != nil {
		return c.dirsErr
	}
	t := &c.target
	override := c.Getenv("CNI_NETNS_OVERRIDE")
	t.NetNSOverride = strings.EqualFold(override, "true") || override == "1"
	var err error
	if t.Args, err = cniArgs(c.Getenv("CNI_ARGS")); err != nil {
		return err
	}
	if t.Capabilities, err = capArgs(c.Getenv("CAP_ARGS")); err != nil {
		return err
	}
	c.setRunner()
	return nil
}

func (c *call) cache() *chain.Cache {
	if c.cacheDir != "" {
		return &chain.Cache{Dir: c.cacheDir}
	}
	dir, notice := state.CacheDir(c.stateDir)
	return &chain.Cache{Dir: dir, Creating: func() {
		if notice != "" {
			c.runner.Warn("%s", notice)
		}
	}}
}

// describer returns what describes the resources and holdings of built-in plugins.
func (c *call) describer() *chain.Describer { return chain.NewDescriber(c.Applets.Plugin, c.stateDir) }

// setRunner creates the runner of the flags; its warnings go to stderr.
func (c *call) setRunner() {
	local := c.local()
	c.runner = &chain.Runner{
		Invoker: local, Cache: c.cache(), Path: c.path,
		Warn: c.warn, Session: c.Session,
	}
}

// local returns the invoker of plugins that the flags select.
func (c *call) local() *chain.Invoker {
	l := c.Invoker(filepath.SplitList(c.path))
	l.BuiltIn, l.StderrInError, l.Timeout = true, true, c.timeout
	if c.stateDir != "" { // of two equal variables a program uses the first
		l.Environ = append([]string{spec.StateEnv + "=" + c.stateDir}, slices.DeleteFunc(slices.Clone(l.Environ), func(v string) bool {
			return strings.HasPrefix(v, spec.StateEnv+"=")
		})...)
	}
	return l
}

// load finds the configuration of a target's network. For a known attachment the cached one is enough: DEL
// must be possible after the configuration has been deleted or broken.
func (c *call) load(t target) (*chain.List, error) {
	l, err := c.lookup(t.network)
	c.speak(l)
	if err == nil {
		return l, nil
	}
	cached := c.cached(t)
	if cached == nil {
		return nil, err
	}
	if !errors.Is(err, os.ErrNotExist) {
		c.runner.Warn("%v: that of the ADD is used", err)
	}
	c.speak(cached)
	return cached, nil
}

// cached returns the configuration with which an attachment was made, for the verbs that need no
// newer one; nil: none.
func (c *call) cached(t target) *chain.List {
	switch c.verb {
	case "del", "check", "get":
		if e, err := c.runner.Cache.Lookup(t.attachment()); err == nil {
			l, _ := e.List()
			return l
		}
	case "gc", "rm":
		return c.cachedList(t.network)
	}
	return nil
}

// cachedList returns the network as it was when the first of its attachments was added; nil if it
// has none. podman's default network is in no file until it is changed, but what podman has lost in
// it must be deleted too.
func (c *call) cachedList(network string) *chain.List {
	entries, _, err := c.runner.Cache.List()
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.NetworkName != network {
			continue
		}
		if l, err := e.List(); err == nil {
			return l
		}
	}
	return nil
}

// lookup loads a network from the directory of configurations, or the embedded one if the directory
// has none. The error is os.ErrNotExist, with the code of [chain.Dir.Load], if there is no such network.
func (c *call) lookup(network string) (*chain.List, error) {
	configs := c.configs
	if configs == nil {
		configs = chain.NewDir(c.confDir)
	}
	l, err := configs.Load(network)
	if l != nil && len(l.Ignored) > 0 {
		c.runner.Warn("network %s is configured more than once: %s is used, not %s", network, l.File, strings.Join(l.Ignored, ", "))
	}
	if err == nil || l != nil || !errors.Is(err, os.ErrNotExist) {
		return l, err
	}
	names, broken := chain.Networks(c.confDir)
	if network == defaultnet.Name && len(names)+len(broken) == 0 {
		l, ranges, err := defaultnet.List(c.runner.Cache.Dir)
		if err == nil {
			c.runner.Warn("no configuration in %s: using the embedded network %q (%s)", c.confDir, network, ranges)
		}
		return l, err
	}
	return nil, &hint.Error{Err: err, Hint: networksHint(c.confDir, names, broken)}
}

// speak sets the version of errors about a network; nil is not a network.
func (c *call) speak(l *chain.List) {
	if l != nil {
		c.speaks, _ = spec.ParseVersion(l.CNIVersion)
	}
}

// ignoreClosedPipe lets a verb finish its work, or undo it, after the reader of its output has
// ended. SIGPIPE still kills the programs that it starts.
func ignoreClosedPipe() { signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) }
