package applet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// Release is the release of the reference plugins whose behaviour the plugins implement. nerdctl
// and Nomad read it from the about text and compare it. Both would take one with a suffix like
// -cnibox for an older release.
const Release = "v1.9.1"

// Version and Commit are those of this program; the Makefile sets both. In a build without it, as
// with `go install`, Commit is empty.
var (
	Version = "0.2.0-dev"
	Commit  string
)

// Serve runs a plugin as the specification says: it builds a request from CNI_* and stdin, and
// writes the answer of the verb to stdout. It returns the exit code: 0, or 1 after an error object
// on stdout.
//
// Without CNI_COMMAND it writes the about text to stderr, returns 0 and does not read stdin:
// runtimes read the release from this text. An argument other than help and --version is an error
// with exit code 2.
func Serve(ctx context.Context, a *Applet, p Process) int {
	switch spec.Verb(p.Getenv("CNI_COMMAND")) {
	case "":
		switch {
		case len(p.Args) > 0 && IsHelp(p.Args[0]):
			return WriteHelp(a, p.Stdout)
		case len(p.Args) > 0 && p.Args[0] != "version" && p.Args[0] != "--version":
			p.Complain("cnibox "+a.Name, "unknown argument %q (a plugin is called by a runtime, with CNI_COMMAND; `cnibox help %s` shows its keys)", p.Args[0], a.Name)
			return 2
		}
		About(a, p.Stderr)
		return 0
	case spec.GetVersion:
		p.Log.About(Subject{Verb: string(spec.GetVersion)})
		// An unreadable stdin counts as empty.
		conf, _ := readInput(ctx, p.Stdin, versionTimeout)
		return write(p, spec.VersionAnswer(conf, a.plugin().Since), spec.Newest, nil)
	}
	version := spec.Newest
	verb := p.Session
	if verb == nil {
		verb = session.New()
		defer verb.Close()
	}
	of := verb.For(0, "", nil)
	defer of.Close()
	out, takeBack, err := answer(ctx, a, p, of, &version)
	if err != nil {
		p.Log.Failed(err)
		write(p, located(err).Encode(version), version, nil)
		return 1
	}
	return write(p, out, version, takeBack)
}

// About writes the about text, whose first line runtimes parse. The text has the applet's name, not
// that of the link that was called.
func About(a *Applet, w io.Writer) {
	fmt.Fprintf(w, "CNI %s plugin %s+cnibox.%s\nCNI protocol versions supported: %s\n",
		a.Name, Release, strings.ReplaceAll(Version, "+", "."), strings.Join(Served(a), ", "))
}

// VersionLine is the line about the version of a tool.
func VersionLine(name string) string {
	return fmt.Sprintf("%s %s, commit %s, as the CNI plugins %s, CNI %s to %s, %s\n",
		name, Version, cmp.Or(Commit, "unknown"), Release, spec.V010, spec.Newest, runtime.Version())
}

// Served returns the versions of the specification that an applet serves.
func Served(a *Applet) (versions []string) {
	for _, v := range spec.Versions(a.plugin().Since) {
		versions = append(versions, v.String())
	}
	return versions
}

// answer returns the result of the verb as bytes, which may be empty, and for an ADD its undo. It
// sets version to that of the configuration as soon as it is known. A panic is an error of the
// verb, with the stack on stderr.
//
// The order of the checks is the reference's: variables, stdin, JSON, name, version. The namespace
// is checked before the work only.
func answer(ctx context.Context, a *Applet, p Process, of *session.Session, version *spec.Version) (out []byte, takeBack func(error) error, err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := make([]byte, 16<<10) // enough for the innermost calls
			stack = stack[:runtime.Stack(stack, false)]
			p.Complain("cnibox "+a.Name, "panic: %v", v)
			spec.Lines(p.Stderr).Write(stack)
			out, takeBack, err = nil, nil, spec.Errorf(spec.CodeInternal, "panic: %v", v)
		}
	}()
	call, err := spec.ReadCall(p.Getenv)
	subject := Subject{Verb: string(call.Verb), ContainerID: call.ContainerID, IfName: call.IfName, NetNS: call.NetNS}
	p.Log.About(subject)
	// Another verb that was killed is completed by its next call. What an IPAM plugin that only
	// uses files has leased, DEL releases, as after any failed ADD.
	plugin := a.plugin()
	undoes := call.Verb == spec.Add && !plugin.AnyNetNS
	if undoes {
		interrupt.Expect()
	}
	if err != nil {
		// only its version is needed, so there is no need to wait for the end
		if conf, rerr := readInput(ctx, p.Stdin, versionTimeout); rerr == nil {
			*version = spec.ConfVersion(conf)
		}
		return nil, nil, err
	}
	conf, err := readInput(ctx, p.Stdin, 0)
	if err != nil {
		return nil, nil, spec.Errorf(spec.CodeIO, "error reading from stdin: %w", err)
	}
	call.Session = of
	r, err := spec.NewRequest(call, conf)
	if r != nil {
		*version = r.Net.Version
		subject.Network = r.Network
		p.Log.About(subject)
	}
	if err != nil {
		return nil, nil, err
	}
	r.Warn = func(format string, args ...any) {
		p.Complain("cnibox "+a.Name, format, args...)
	}
	r.Invoker = p.Invoker(r.Path).Once()
	// Only here: delegates and chain members would repeat the warning.
	spec.WarnUnknownArgs(r)
	if call.Verb == spec.Add {
		if err := p.CheckLimits(); err != nil {
			return nil, nil, err
		}
	}
	if err = plugin.CheckRequest(r); err == nil && !plugin.OpensNetNS {
		err = checkNetNS(r, !plugin.AnyNetNS)
	}
	if err != nil {
		return nil, nil, err
	}
	if undoes {
		defer interrupt.Begin()()
	}
	result, err := plugin.Do(ctx, r)
	if err != nil || result == nil {
		return nil, nil, privilege(err)
	}
	if out, err = r.Encode(result); err == nil && call.Verb == spec.Add {
		takeBack = func(cause error) error { return a.undoAdd(ctx, r, result, cause) }
	}
	return out, takeBack, err
}

// undoAdd deletes what an ADD made whose result could not be printed, and returns the cause.
func (a *Applet) undoAdd(ctx context.Context, r *spec.Request, result *spec.Result, cause error) error {
	defer interrupt.Begin()()
	ctx, cancel := interrupt.UndoContext(ctx, interrupt.Undo)
	defer cancel()
	del := r.Clone()
	del.Call.Verb, del.Prev = spec.Del, result
	if _, err := a.plugin().Do(ctx, del); err != nil {
		return spec.AsError(cause).WithDetails("undo: %v", err)
	}
	return cause
}

// located returns the error object. Its details have the key that caused the error, if the key is
// not at the top level and not in the text: there is no file with a line and column.
func located(err error) *spec.Error {
	e := spec.AsError(err)
	if key, _ := spec.KeyOf(err); strings.ContainsAny(key, ".[") && !strings.Contains(e.Error(), strings.TrimPrefix(key, "prevResult.")) {
		return e.WithDetails("see %q", key)
	}
	return e
}

// privilege explains an error of a plugin that does not run as root.
func privilege(err error) error {
	if !errors.Is(err, os.ErrPermission) || unix.Geteuid() == 0 {
		return err
	}
	e := spec.AsError(err).WithDetails("a plugin must run as root")
	if e.Code == spec.CodeInternal {
		e.Code = spec.CodeHost
	}
	return e
}

// checkNetNS checks CNI_NETNS before a verb of a plugin that does not open it itself. A DEL without
// a network has nothing to do. The host's own namespace is always an error. A namespace that cannot
// be opened is an error of the verbs of a plugin that enters it.
func checkNetNS(r *spec.Request, enters bool) error {
	needed := false
	switch r.Call.Verb {
	case spec.Add, spec.Check, spec.Get:
		needed = enters
	case spec.Del:
		if r.Network == "" {
			return nil
		}
	default:
		return nil
	}
	_, err := r.Call.OpenNS()
	switch {
	case err == nil:
		return nil
	case needed || errors.Is(err, spec.ErrOwnNS):
		return err
	}
	return nil
}

// write writes an answer to stdout, which is one JSON value or empty. If that fails it undoes an
// ADD, writes the error to stderr and returns exit code 1.
func write(p Process, out []byte, version spec.Version, takeBack func(cause error) error) int {
	if len(out) == 0 {
		return 0
	}
	_, err := p.Stdout.Write(out)
	if err == nil {
		return 0
	}
	err = spec.Errorf(spec.CodeIO, "write the answer: %w", err)
	if takeBack != nil {
		err = takeBack(err)
	}
	p.Log.Failed(err)
	p.Stderr.Write(append(spec.AsError(err).Encode(version), '\n'))
	return 1
}
