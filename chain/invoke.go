// Package chain is the runtime's half of the CNI specification: it loads network configuration
// lists, runs their plugins for a verb, finds and invokes each plugin, and stores what later verbs
// need in libcni's cache. It depends on no particular plugin, and of the kernel only on whether a
// network namespace exists.
//
// A caller loads a [List] by [Load] or [LoadFile] and runs it with a [Runner], which needs an
// [Invoker] and a [Cache]. Errors for the runtime are a [spec.Error] with their code.
//
// Begin reading at [Runner.Add] (run.go), the only verb that must undo its changes. conf.go and
// dropin.go read lists; step.go makes the request of each plugin for an [Invoker], which calls a
// plugin of this binary or starts a file (exec.go). With the cache (cache.go, entry.go), recall.go
// finds the arguments of the ADD, gc.go the stale attachments, and judge.go reads the answer of CHECK.
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

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/launcher"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/internal/spell"
	"github.com/cnibox/cnibox/spec"
)

// DefaultTimeout is the timeout of one plugin unless the context or [Invoker] sets another one.
const DefaultTimeout = 60 * time.Second

// Invoker finds plugins and runs them: in this process if the file is this binary, else as
// processes. It is a [spec.Invoker] without state, except for [Invoker.Once]. Several goroutines
// may use it.
type Invoker struct {
	Path    []string                         // directories of CNI_PATH; empty: only built-in plugins
	BuiltIn bool                             // search the built-in plugins after those directories
	Lookup  func(string) (spec.Plugin, bool) // the plugins built in, by type
	Names   func() []string                  // of these, to find misspelled names; may be nil
	Environ []string                         // an exec'd plugin's environment besides CNI_*
	Stderr  io.Writer                        // receives the stderr of plugins; may be nil
	Timeout time.Duration                    // of one plugin; 0: DefaultTimeout
	// StderrInError says that the caller prints the details of errors: they have the stderr of a
	// failed plugin, which is then not also written to Stderr.
	StderrInError bool
	// ForceExec starts a process even for built-in plugins, so that tests can compare both.
	ForceExec bool

	known *sync.Map // found plugins by type; nil: searched each time
}

// Once returns l for one call, which searches each plugin once.
func (l *Invoker) Once() spec.Invoker {
	once := *l
	once.known = new(sync.Map)
	return &once
}

// found has the file of a plugin, and its verbs if it is built in.
type found struct {
	file    string
	builtIn *spec.Plugin
}

// maxStack is the number of kept bytes of a panic's stack, the innermost calls.
const maxStack = 16 << 10

// depthKey is the variable with the depth of plugins that have started one another, and maxDepth
// its limit, which ends a loop over external plugins. The deepest delegations in use have four
// plugins.
const (
	depthKey = "CNIBOX_DEPTH"
	maxDepth = 10
)

// own identifies the running binary, which never changes.
var own struct {
	once sync.Once
	info os.FileInfo
	err  error
}

func statSelf() (os.FileInfo, error) {
	own.once.Do(func() { own.info, own.err = os.Stat(program.Self) })
	return own.info, own.err
}

// Invoke runs r.Call.Verb of a plugin. Errors are [*spec.Error] with the plugin's own code, 4 or
// 103 if the plugin is missing, 11 after the deadline, 999 after a panic. The deadline is the
// earlier of ctx's and the plugin's own.
func (l *Invoker) Invoke(ctx context.Context, plugin string, r *spec.Request) (*spec.Result, error) {
	file, builtIn, err := l.find(plugin)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	internal := r.Call.Verb == spec.Restore || r.Call.Verb == spec.Prepare
	if internal && builtIn == nil {
		return nil, spec.Errorf(spec.CodePlugin, "plugin %s (%s) is an external program, which does not know %s", plugin, file, r.Call.Verb)
	}
	if builtIn != nil && (!l.ForceExec || internal) {
		return l.inProcess(ctx, plugin, *builtIn, r)
	}
	return l.exec(ctx, plugin, file, r)
}

// timeout bounds one plugin.
func (l *Invoker) timeout() time.Duration { return cmp.Or(l.Timeout, DefaultTimeout) }

// environ returns an exec'd plugin's environment: ours, with the call's variables replacing those
// with the same names, since a program uses the first of two.
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

// depth returns the number of plugins that started one another, down to this process.
func (l *Invoker) depth() int {
	depth, _ := strconv.Atoi(l.variable(depthKey))
	return depth
}

// variable returns a variable of Environ, the last with its name.
func (l *Invoker) variable(name string) (value string) {
	for _, v := range l.Environ {
		if text, ok := strings.CutPrefix(v, name+"="); ok {
			value = text
		}
	}
	return value
}

// find returns the file of a plugin, and its verbs if it is built in. As the specification says,
// the first match in CNI_PATH counts; the plugin is built in if that file is this binary.
//
// So an external host-local in an earlier directory is run, and what leads to this binary, a link or
// a file with its path in a #! line, needs no process. With BuiltIn, for a runtime, a plugin that is in no directory may be built in.
func (l *Invoker) find(plugin string) (file string, builtIn *spec.Plugin, err error) {
	if l.known == nil {
		return l.look(plugin)
	}
	if f, ok := l.known.Load(plugin); ok {
		return f.(found).file, f.(found).builtIn, nil
	}
	if file, builtIn, err = l.look(plugin); err == nil {
		l.known.Store(plugin, found{file, builtIn})
	}
	return file, builtIn, err
}

// look is find without the known plugins.
func (l *Invoker) look(plugin string) (file string, builtIn *spec.Plugin, err error) {
	if err := spec.CheckType(plugin); err != nil {
		return "", nil, err
	}
	if len(l.Path) == 0 {
		return l.builtIn(plugin)
	}
	file, missing := findInPath(plugin, l.Path)
	if missing != nil {
		switch v, meant := l.Known(plugin), l.misspelled(plugin); {
		case v != nil && l.BuiltIn:
			return program.Self, v, nil
		case v != nil:
			missing = missing.WithDetails("it is built in: unset CNI_PATH, or create its file with `cnibox install DIR`")
		case meant != "":
			missing = missing.WithDetails("%s", meant)
		}
		return "", nil, missing
	}
	if me, err := statSelf(); err == nil && launcher.Starts(file, me) {
		builtIn = l.Known(plugin)
	}
	return file, builtIn, nil
}

// Find returns the verbs of a plugin that is built in, and nil for one that is external.
func (l *Invoker) Find(plugin string) (*spec.Plugin, error) {
	_, builtIn, err := l.find(plugin)
	return builtIn, err
}

// builtIn finds plugins with an empty CNI_PATH, which the specification allows and the reference
// rejects.
func (l *Invoker) builtIn(plugin string) (string, *spec.Plugin, error) {
	if v := l.Known(plugin); v != nil {
		return program.Self, v, nil
	}
	if meant := l.misspelled(plugin); meant != "" {
		return "", nil, &spec.Error{Code: spec.CodePlugin, Msg: meant, Err: fmt.Errorf("%w: %w", errMisspelled, os.ErrNotExist)}
	}
	return "", nil, &spec.Error{
		Code: spec.CodeEnv, Err: os.ErrNotExist,
		Msg: fmt.Sprintf("CNI_PATH is empty and plugin %q is not built in: set CNI_PATH to the directory that contains it", plugin),
	}
}

// errMisspelled is the cause if a plugin is missing, its name is similar to that of a built-in one,
// and no directory was searched.
var errMisspelled = errors.New("misspelled")

// misspelled is [Misspelled] for the built-in plugins.
func (l *Invoker) misspelled(plugin string) string {
	if l.Names == nil {
		return ""
	}
	return Misspelled(plugin, l.Names())
}

// Misspelled returns the message for a missing plugin whose name is similar to one of the names;
// empty: none is similar.
func Misspelled(plugin string, names []string) string {
	if near := spell.Nearest(plugin, names); near != "" {
		return fmt.Sprintf("unknown plugin %q: did you mean %q?", plugin, near)
	}
	return ""
}

// Known returns the plugin that is built in under a name; nil: there is none.
func (l *Invoker) Known(plugin string) *spec.Plugin {
	if l.Lookup != nil {
		if v, ok := l.Lookup(plugin); ok {
			return &v
		}
	}
	return nil
}

// findInPath returns the first regular file with that name and follows links. execve(2) reports
// whether it can be executed. The error is os.ErrNotExist, with the reference's text and code 103.
func findInPath(plugin string, dirs []string) (string, *spec.Error) {
	for _, dir := range dirs {
		path := filepath.Join(dir, plugin)
		if info, err := disk.LookUp(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", &spec.Error{Code: spec.CodePlugin, Msg: fmt.Sprintf("failed to find plugin %q in path %v", plugin, dirs), Err: os.ErrNotExist}
}

// inProcess calls a built-in plugin. The plugin gets a request of its own, so its changes are not
// visible to others. A panic is an error of the plugin, with code 999, and does not end the
// runtime.
func (l *Invoker) inProcess(ctx context.Context, plugin string, v spec.Plugin, r *spec.Request) (res *spec.Result, err error) {
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
	if own.Call.SystemBus == "" { // as an exec'd plugin would find it
		own.Call.SystemBus = l.variable(spec.SystemBusEnv)
	}
	if own.Call.StateDir == "" {
		own.Call.StateDir = l.variable(spec.StateEnv)
	}
	if own.Prev, err = asReceived(own.Prev, r); err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	if res, err = v.Do(ctx, own); err != nil {
		return nil, deadline(ctx, plugin, r.Call.Verb, err)
	}
	if res != nil && r.Net.Version.NeedsAddress() { // an exec'd plugin could not print such a result
		if _, err := r.Encode(res); err != nil {
			return nil, err
		}
	}
	return asReceived(res, r)
}

// asReceived returns a result as the next plugin would receive it. Below 0.3.0 the encoded form loses
// interfaces and more, and a chain must not depend on whether its plugins are built in.
func asReceived(res *spec.Result, r *spec.Request) (*spec.Result, error) {
	if res == nil || !r.Net.Version.NeedsAddress() {
		return res, nil
	}
	b, err := res.EncodeFor(r.Net.Version, r.IfName)
	if err != nil {
		return nil, err
	}
	return spec.ParseResult(b, r.Net.Version)
}

// deadline turns the error of a plugin after its deadline into code 11. The runtime may retry.
func deadline(ctx context.Context, plugin string, verb spec.Verb, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	cause := context.DeadlineExceeded
	if errors.Is(err, spec.ErrNoAnswer) {
		cause = noAnswer{cause}
	}
	// The plugin's own code must not count, so its error is not wrapped.
	return &spec.Error{
		Code: spec.CodeTryAgain, Msg: fmt.Sprintf("plugin %s did not finish %s in time: %v", plugin, verb, err),
		Err: cause,
	}
}
