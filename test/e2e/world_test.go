package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// A world is a host with a link for each applet in its bin. Calls are processes.
type world struct {
	*applettest.Host

	// stop ends the host's daemon; nil: none.
	stop func()

	// tracer is the command line that programs are run by; nil: none.
	tracer []string

	// usage is the file to which the next program writes its usage; empty: none.
	usage string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Host: applettest.NewHost(t)}
	product.Install(t, w.Path("bin"))
	return w
}

// on returns the world for a subtest.
func (w *world) on(t *testing.T) *world {
	h := *w.Host
	h.T = t
	return &world{Host: &h}
}

// write makes a file with this text, and its directory.
func (w *world) write(name, text string) {
	w.Helper()
	err := os.MkdirAll(filepath.Dir(w.Path(name)), 0o755)
	if err == nil {
		err = os.WriteFile(w.Path(name), []byte(w.Expand(text)), 0o600)
	}
	w.NoError(err)
}

// An answer is the outcome of a process.
type answer struct {
	exit           int            // -1: it was killed
	signal         syscall.Signal // that killed it; -1: none
	stdout, stderr string
}

// code returns the code of the error object that is all of stdout, or of the first finding in the
// document of cni-exec del; 0 on success. Output that a runtime could not parse fails the test.
func (a answer) code(t *testing.T) int {
	t.Helper()
	if a.exit == 0 {
		return 0
	}
	type found struct {
		Msg  string `json:"message"`
		Code int
	}
	var e struct {
		CNIVersion, Msg string
		Code            int
		Findings        []found // of the document of cni-exec del
	}
	err := json.Unmarshal([]byte(a.stdout), &e)
	if len(e.Findings) > 0 {
		e.CNIVersion, e.Msg, e.Code = "none", e.Findings[0].Msg, e.Findings[0].Code
	}
	if err != nil || a.exit != 1 || e.Msg == "" || e.CNIVersion == "" || e.Code == 0 {
		t.Errorf("exit code %d, %v: %.300q on stdout, %.300q on stderr", a.exit, err, a.stdout, a.stderr)
	}
	return e.Code
}

// processTime is how long a process may take before it counts as stuck.
var processTime = applettest.ProcessTimeout

// run starts a program in the world's network namespace.
func (w *world) run(stdin string, env []string, argv ...string) answer {
	w.Helper()
	a, err := w.try(stdin, env, argv...)
	w.NoError(err)
	return a
}

// try is run for any goroutine: it does not end the test.
func (w *world) try(stdin string, env []string, argv ...string) (a answer, err error) {
	argv = append(slices.Clone(w.tracer), argv...)
	if w.usage != "" {
		env = append(slices.Clone(env), product.MeasureTo(w.usage))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	a.exit, a.stdout, a.stderr, err = w.Process(cmd, stdin, env...)
	if cmd.ProcessState != nil {
		a.signal = cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
	}
	return a, err
}

// measured returns the usage of the applet that fn runs as a process.
func (w *world) measured(fn func()) product.Usage {
	w.Helper()
	w.usage = w.Path("usage")
	fn()
	u, err := product.ReadUsage(w.usage)
	w.usage = ""
	w.NoError(err)
	return u
}

// plugin calls a plugin as a runtime does.
func (w *world) plugin(verb spec.Verb, applet, conf string, c applettest.Container, env ...string) answer {
	w.Helper()
	return w.run(w.Expand(conf), c.Env(verb, env...), w.Path("bin/"+applet))
}

// must checks that a call has succeeded.
func (w *world) must(what string, a answer) string {
	w.Helper()
	if a.exit != 0 {
		w.Fatalf("%s: exit code %d: %s%s", what, a.exit, a.stdout, a.stderr)
	}
	return a.stdout
}

// strace sets the tracer, or skips the test without strace.
func (w *world) strace(options ...string) {
	w.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		w.Skipf("SKIPPED: %v", err)
	}
	w.tracer = append([]string{"strace", "-f", "-qq"}, options...)
}

// oddFiles make something else at a path where a regular file is expected.
var oddFiles = map[string]func(path string) error{
	"dir":     func(path string) error { return os.MkdirAll(filepath.Join(path, "full"), 0o700) },
	"fifo":    func(path string) error { return unix.Mkfifo(path, 0o600) },
	"regular": func(path string) error { return os.WriteFile(path, []byte("rubbish"), 0o600) },
	"loop":    func(path string) error { return os.Symlink(path, path) },
	"symlink": func(path string) error { return os.Symlink(filepath.Join(filepath.Dir(path), "nothing"), path) },
	"socket": func(path string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	},
}
