// Package chain is the runtime's half of the CNI specification: it loads
// network configuration lists, runs their plugins for a verb, finds and
// invokes each plugin, and keeps what later verbs need in libcni's cache.
// It knows no particular plugin, and nothing of the kernel but whether a network
// namespace exists.
//
// A caller loads a [List] by [Load] or [LoadFile] and runs it with a [Runner], which needs an
// [Invoker] and a [Cache]. Errors for the runtime are a [spec.Error] with their code.
//
// Begin reading at [Runner.Add] (run.go), the one verb that has to undo itself. Lists are read
// in conf.go and dropin.go; step.go makes the request of each plugin for an [Invoker], which
// calls a plugin of this binary or starts a file (exec.go). In the cache (cache.go, entry.go)
// recall.go finds what the ADD was run with, and gc.go what is stale.
package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cnibox/internal/spell"
	"cnibox/spec"
)

// DefaultTimeout is how long one plugin may take if neither the context nor
// [Invoker] says otherwise.
const DefaultTimeout = 60 * time.Second

// Invoker finds plugins and runs them: in this process if they are this very
// binary, else as processes. It is a [spec.Invoker] and has no state of its own, but for
// [Invoker.Once]. Several goroutines may use it.
type Invoker struct {
	Path    []string                        // directories of CNI_PATH; empty: only what is built in
	BuiltIn bool                            // what is built in is found behind those directories too
	Lookup  func(string) (spec.Verbs, bool) // the plugins built in, by type
	Names   func() []string                 // of all of these, to find what was meant; may be nil
	Environ []string                        // what an exec'd plugin sees besides CNI_*
	Stderr  io.Writer                       // gets the stderr of plugins; may be nil
	Timeout time.Duration                   // of one plugin; 0: DefaultTimeout
	// StderrInError says that the caller prints the details of errors: what a plugin that
	// failed has written on stderr is there, and does not go to Stderr as well.
	StderrInError bool
	// ForceExec starts a process even for what is built in, so that tests can
	// compare both ways.
	ForceExec bool

	known *sync.Map // found by type; nil: looked up each time
}

// Once is l for one call, which looks each plugin up once.
func (l *Invoker) Once() spec.Invoker {
	once := *l
	once.known = new(sync.Map)
	return &once
}

// found is where a plugin is, and its verbs if it is built in.
type found struct {
	file  string
	verbs *spec.Verbs
}

// maxStack is how many bytes of a panic's stack are kept, the innermost calls.
const maxStack = 16 << 10

// depthKey is the variable with the number of plugins that have started one another, and
// maxDepth the largest number. A loop over external plugins has no other end; the longest
// delegations in use have four plugins.
const (
	depthKey = "CNIBOX_DEPTH"
	maxDepth = 10
)

// self is a link to the running binary, which stays right when the file is moved, replaced
// or deleted: a chain ends with the plugins that it began with.
const self = "/proc/self/exe"

// own is what the running binary is, which never changes.
var own struct {
	once sync.Once
	info os.FileInfo
	err  error
}

func statSelf() (os.FileInfo, error) {
	own.once.Do(func() { own.info, own.err = os.Stat(self) })
	return own.info, own.err
}

// Invoke runs r.Call.Verb of a plugin. Errors are [*spec.Error] with the
// plugin's own code, 4 or 103 if there is no such plugin, 11 after the
// deadline, 999 after a panic.
// The deadline is the nearer of ctx's and the plugin's own.
func (l *Invoker) Invoke(ctx context.Context, plugin string, r *spec.Request) (*spec.Result, error) {
	file, verbs, err := l.find(plugin)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	internal := r.Call.Verb == spec.Restore || r.Call.Verb == spec.Prepare
	if internal && verbs == nil {
		return nil, spec.Errorf(spec.CodePlugin, "plugin %s (%s) is an external program, which does not know %s", plugin, file, r.Call.Verb)
	}
	if verbs != nil && (!l.ForceExec || internal) {
		return l.inProcess(ctx, plugin, *verbs, r)
	}
	return l.exec(ctx, plugin, file, r)
}

// timeout bounds one plugin.
func (l *Invoker) timeout() time.Duration { return cmp.Or(l.Timeout, DefaultTimeout) }

// environ returns what an exec'd plugin sees: ours, and the call's variables in
// the place of those of the same names: of two, a program takes the first.
func (l *Invoker) environ(c spec.Call) []string {
	call := append(c.Environ(), depthKey+"="+strconv.Itoa(l.depth()+1))
	ours := make([]string, 0, len(l.Environ)+len(call))
	for _, v := range l.Environ {
		name, _, _ := strings.Cut(v, "=")
		named := func(other string) bool { return strings.HasPrefix(other, name+"=") }
		if !slices.ContainsFunc(call, named) {
			ours = append(ours, v)
		}
	}
	return append(ours, call...)
}

// depth is how many plugins have started one another until there was this process.
func (l *Invoker) depth() int {
	depth, _ := strconv.Atoi(l.variable(depthKey))
	return depth
}

// variable returns one of Environ, the last of its name.
func (l *Invoker) variable(name string) (value string) {
	for _, v := range l.Environ {
		if text, ok := strings.CutPrefix(v, name+"="); ok {
			value = text
		}
	}
	return value
}

// find returns the file of a plugin, and its verbs if it is built in. The first match on
// the path decides, as the specification has it, and it is built in if it is this same file.
//
// So an external host-local in a directory before ours is run, and a link to ours costs no
// process. With BuiltIn, which is a runtime's, what is in no directory may be built in.
func (l *Invoker) find(plugin string) (file string, verbs *spec.Verbs, err error) {
	if l.known == nil {
		return l.look(plugin)
	}
	if f, ok := l.known.Load(plugin); ok {
		return f.(found).file, f.(found).verbs, nil
	}
	if file, verbs, err = l.look(plugin); err == nil {
		l.known.Store(plugin, found{file, verbs})
	}
	return file, verbs, err
}

// look is find without what is known.
func (l *Invoker) look(plugin string) (file string, verbs *spec.Verbs, err error) {
	if err := spec.CheckType(plugin); err != nil {
		return "", nil, err
	}
	if len(l.Path) == 0 {
		return l.builtIn(plugin)
	}
	file, info, missing := findInPath(plugin, l.Path)
	if missing != nil {
		switch v, meant := l.lookup(plugin), l.misspelled(plugin); {
		case v != nil && l.BuiltIn:
			return self, v, nil
		case v != nil:
			missing = missing.WithDetails("it is built in: unset CNI_PATH, or create its link with `cnibox install DIR`")
		case meant != "":
			missing = missing.WithDetails("%s", meant)
		}
		return "", nil, missing
	}
	if me, err := statSelf(); err == nil && os.SameFile(me, info) {
		verbs = l.lookup(plugin)
	}
	return file, verbs, nil
}

// Find returns the verbs of a plugin that is built in, and nil for one that is external.
func (l *Invoker) Find(plugin string) (*spec.Verbs, error) {
	_, verbs, err := l.find(plugin)
	return verbs, err
}

// builtIn serves an empty CNI_PATH.
// The specification has it optional; the reference refuses it.
func (l *Invoker) builtIn(plugin string) (string, *spec.Verbs, error) {
	if v := l.lookup(plugin); v != nil {
		return self, v, nil
	}
	if meant := l.misspelled(plugin); meant != "" {
		return "", nil, &spec.Error{Code: spec.CodePlugin, Msg: meant, Err: fmt.Errorf("%w: %w", errMisspelled, os.ErrNotExist)}
	}
	return "", nil, &spec.Error{
		Code: spec.CodeEnv, Err: os.ErrNotExist,
		Msg: fmt.Sprintf("CNI_PATH is empty and plugin %q is not built in: set CNI_PATH to the directory that contains it", plugin),
	}
}

// errMisspelled is the cause where a plugin is missing whose name is nearly that of one that is
// built in, and no directory was searched.
var errMisspelled = errors.New("misspelled")

// misspelled is [Misspelled] for what is built in.
func (l *Invoker) misspelled(plugin string) string {
	if l.Names == nil {
		return ""
	}
	return Misspelled(plugin, l.Names())
}

// Misspelled is the message for a plugin that is missing, and was meant to be one of those of the
// names; empty: it is like none.
func Misspelled(plugin string, names []string) string {
	if near := spell.Nearest(plugin, names); near != "" {
		return fmt.Sprintf("unknown plugin %q: did you mean %q?", plugin, near)
	}
	return ""
}

// lookup returns a plugin of this binary; nil: it has none of the name.
func (l *Invoker) lookup(plugin string) *spec.Verbs {
	if l.Lookup != nil {
		if v, ok := l.Lookup(plugin); ok {
			return &v
		}
	}
	return nil
}

// findInPath returns the first regular file of that name; links are followed.
// Whether it can be executed is found out by execve(2), which reports why not. The error
// is os.ErrNotExist, with the reference's text and code 103.
func findInPath(plugin string, dirs []string) (string, os.FileInfo, *spec.Error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, plugin)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, info, nil
		}
	}
	return "", nil, &spec.Error{Code: spec.CodePlugin, Msg: fmt.Sprintf("failed to find plugin %q in path %v", plugin, dirs), Err: os.ErrNotExist}
}

// inProcess calls a built-in plugin. It gets a request of its own, so nothing
// that it changes is seen by others.
// A panic is the plugin's error and not the runtime's end, as it would be with a
// process of its own; its code is 999.
func (l *Invoker) inProcess(ctx context.Context, plugin string, v spec.Verbs, r *spec.Request) (res *spec.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			stack := make([]byte, maxStack)
			res, err = nil, &spec.Error{
				Code: spec.CodeInternal, Err: spec.ErrNoAnswer,
				Msg:     fmt.Sprintf("plugin %s panicked on %s: %v", plugin, r.Call.Verb, p),
				Details: string(stack[:runtime.Stack(stack, false)]),
			}
		}
	}()
	own := r.Clone()
	if own.Call.SystemBus == "" { // as a process of its own would find it
		own.Call.SystemBus = l.variable(spec.SystemBusEnv)
	}
	if own.Call.StateDir == "" {
		own.Call.StateDir = l.variable(spec.StateEnv)
	}
	if own.Prev, err = asSeen(own.Prev, r); err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	if res, err = v.Do(ctx, own); err != nil {
		return nil, deadline(ctx, plugin, r.Call.Verb, err)
	}
	if res != nil && r.Net.Version.NeedsAddress() { // what a process of it could not print is an error
		if _, err := r.Encode(res); err != nil {
			return nil, err
		}
	}
	return asSeen(res, r)
}

// asSeen returns what the next plugin would see of a result. Below 0.3.0 the
// wire form loses interfaces and more, and a chain must not depend on whether
// its plugins are built in.
func asSeen(res *spec.Result, r *spec.Request) (*spec.Result, error) {
	if res == nil || !r.Net.Version.NeedsAddress() {
		return res, nil
	}
	b, err := res.EncodeFor(r.Net.Version, r.IfName)
	if err != nil {
		return nil, err
	}
	return spec.ParseResult(b, r.Net.Version)
}

// deadline turns the error of a plugin whose time is over into code 11.
// The runtime may try again.
func deadline(ctx context.Context, plugin string, verb spec.Verb, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	cause := context.DeadlineExceeded
	if errors.Is(err, spec.ErrNoAnswer) {
		cause = noAnswer{cause}
	}
	// The plugin's own code is of no use now, so its error is not wrapped.
	return &spec.Error{
		Code: spec.CodeTryAgain, Msg: fmt.Sprintf("plugin %s did not finish %s in time: %v", plugin, verb, err),
		Err: cause,
	}
}
