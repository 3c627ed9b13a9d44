package chain

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/spec"
)

const (
	maxStdout = 16 << 20        // bytes of a plugin's answer
	maxBusy   = 2 * time.Second // longest wait for a plugin file that is open for writing
)

// exec runs a plugin in a process group of its own, which is killed as a whole when the context
// ends.
//
// The plugin's environment is ours followed by CNI_*, its stdin the request's configuration. Its
// stderr is copied to ours, as the specification requires for delegation, each line after the name
// of the plugin; if the plugin fails, also to the error's details.
func (l *Invoker) exec(ctx context.Context, plugin, file string, r *spec.Request) (*spec.Result, error) {
	if l.depth() >= maxDepth {
		err := spec.Errorf(spec.CodeConfig, "plugin %s: %d plugins have started one another: one of them must be its own delegate", plugin, maxDepth)
		if r.Call.Verb != spec.Del {
			return nil, err
		}
		r.Warn("%v", err) // no ADD gets past this, so there is nothing to release
		return nil, nil
	}
	stdin, err := r.Wire()
	if err != nil {
		return nil, fmt.Errorf("configuration of plugin %s: %w", plugin, err)
	}
	a, err := start(ctx, plugin, file, l.environ(r.Call), stdin)
	if err == nil {
		err = a.check()
	}
	if a != nil && l.Stderr != nil && len(a.stderr) > 0 && (err == nil || !l.StderrInError) {
		l.Stderr.Write(prefixed(plugin, a.stderr))
	}
	if err != nil {
		return nil, deadline(ctx, plugin, r.Call.Verb, err)
	}
	// The output of other verbs is ignored.
	if r.Call.Verb != spec.Add && r.Call.Verb != spec.Get {
		return nil, nil
	}
	return a.result(r)
}

// prefixed adds the plugin's name to each line that it has written, unless the line has it already,
// as our plugins' lines do: otherwise the line could be mistaken for one of another program.
func prefixed(plugin string, stderr []byte) []byte {
	var out []byte
	for line := range bytes.Lines(stderr) {
		if !bytes.HasPrefix(bytes.TrimPrefix(line, []byte("cnibox ")), []byte(plugin+": ")) {
			out = append(out, plugin+": "...)
		}
		out = append(append(out, bytes.TrimSuffix(line, []byte("\n"))...), '\n')
	}
	return out
}

// An answer is the output and the exit status of a plugin, which may have failed: see
// [answer.check].
type answer struct {
	plugin         string
	status         string // "exit status 1", "signal: killed"; empty: exit 0
	stdout, stderr []byte
}

// start runs the file until it ends. If the file is open for writing, start retries for a while,
// since installers copy in place: after 10 ms, doubled each time, some 2.5 s in all. The reference
// retries too, but with an exec.Cmd that was started before, which Go rejects.
func start(ctx context.Context, plugin, file string, env []string, stdin []byte) (*answer, error) {
	for pause := 10 * time.Millisecond; ; pause *= 2 {
		a, err := startOnce(ctx, plugin, file, env, stdin)
		if !errors.Is(err, unix.ETXTBSY) || pause > maxBusy {
			return a, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// startOnce runs the file once. It returns an error if the plugin was not started, was killed, or
// exceeded the limit of output; anything else is an answer.
func startOnce(ctx context.Context, plugin, file string, env []string, stdin []byte) (*answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, spec.Errorf(spec.CodePlugin, "plugin %s: not started: %w", plugin, err)
	}
	stdout, stderr := &head{max: maxStdout}, new(program.Tail)
	p := program.Program{
		File: file, Args: []string{file}, Environ: env,
		Stdin: bytes.NewReader(stdin), Stdout: stdout, Stderr: stderr,
		// A process group of its own, so that the plugin's children are killed with it.
		Attr: unix.SysProcAttr{Setpgid: true},
	}
	// This binary finds the applet by this name.
	if file == program.Self {
		p.Args[0] = plugin
	}
	state, err := p.Run(ctx)
	a := &answer{plugin: plugin, status: program.Describe(state), stdout: stdout.b, stderr: stderr.Bytes()}
	switch {
	case stdout.full:
		return a, a.fail(fmt.Errorf("plugin %s printed more than %d bytes", plugin, maxStdout))
	case ctx.Err() != nil:
		return a, a.fail(&spec.Error{Code: spec.CodePlugin, Msg: file + " was killed", Err: ctx.Err()})
	case err != nil:
		return nil, spec.Errorf(spec.CodePlugin, "plugin %s: %w", plugin, err)
	}
	return a, nil
}

// check returns the error that the plugin reported, whatever its exit status: some plugins print an
// error object and exit 0.
//
// Codes are the plugin's, or 103 for a failure without an error object.
func (a *answer) check() error {
	reported := a.reported()
	switch {
	case reported != nil:
		return reported.WithDetails("%s", a.quote())
	case a.status == "":
		return nil
	case len(bytes.TrimSpace(a.stdout)) > 0:
		return a.fail(fmt.Errorf("netplugin failed (%s) but its stdout %s is not an error object", a.status, excerpt(a.stdout)))
	case len(a.stderr) == 0:
		return a.fail(fmt.Errorf("netplugin failed with no error message: %s", a.status))
	}
	return a.fail(fmt.Errorf("netplugin failed: %s", a.status))
}

// reported returns the error object on stdout, or nil. With exit 0 only an object with a code other
// than 0 is an error, since a result has no code.
func (a *answer) reported() *spec.Error {
	var e struct {
		Code         uint
		Msg, Details string
	}
	if json.Unmarshal(a.stdout, &e) != nil || e.Code == 0 && (e.Msg == "" || a.status == "") {
		return nil
	}
	return &spec.Error{Code: cmp.Or(int(e.Code), spec.CodePlugin), Msg: e.Msg, Details: e.Details}
}

// result parses the answer to ADD or GET in any version. Errors have code 103.
func (a *answer) result(r *spec.Request) (*spec.Result, error) {
	doc := bytes.TrimSpace(a.stdout)
	switch {
	case len(doc) == 0:
		return nil, a.fail(errors.New("netplugin exited with success and printed no result"))
	case string(doc) == "null": // an empty result, as for the reference runtime
		doc = []byte("{}")
	}
	res, err := spec.ParseResult(doc, r.Net.Version)
	if err != nil {
		// Not wrapped: its code would blame the configuration.
		return nil, a.fail(errors.New("result " + excerpt(doc) + ": " + err.Error()))
	}
	for _, odd := range res.TakeOdd() {
		r.Warn("result of %s: %s", a.plugin, odd)
	}
	return asReceived(res, r)
}

// fail returns an error of code 103 with the plugin's stderr in its details, for a plugin without
// an answer.
func (a *answer) fail(err error) error {
	return spec.Errorf(spec.CodePlugin, "%w", noAnswer{err}).WithDetails("%s", a.quote())
}

// noAnswer makes an error match [spec.ErrNoAnswer].
type noAnswer struct{ error }

func (n noAnswer) Unwrap() error { return n.error }

func (noAnswer) Is(target error) bool { return target == spec.ErrNoAnswer } // the value itself

// quote returns the last lines of stderr, at most 4 kB, for the details of an error, which runtimes
// log.
func (a *answer) quote() string {
	s := strings.TrimSpace(string(a.stderr))
	if s == "" {
		return ""
	}
	const longest = 4 << 10
	if len(s) > longest {
		s = "…" + s[len(s)-longest:]
	}
	return "stderr: " + strings.ToValidUTF8(s, "?")
}

// excerpt quotes the first 200 bytes of external data, escaped for terminals and logs.
func excerpt(b []byte) string {
	const longest = 200
	if len(b) <= longest {
		return fmt.Sprintf("%q", b)
	}
	return fmt.Sprintf("%q…", b[:longest])
}

// A head is an [io.Writer] that keeps the first max bytes and then fails, since more output could
// fill the memory of a small board before the deadline.
type head struct {
	b    []byte
	max  int
	full bool
}

// Write fails if b does not fit completely, which ends the copying.
func (h *head) Write(p []byte) (int, error) {
	if len(h.b)+len(p) > h.max {
		h.full = true
		return 0, io.ErrShortWrite
	}
	h.b = append(h.b, p...)
	return len(p), nil
}
