package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// No verb of any plugin starts another program or makes another process, also with delegates.
func TestKernelNoHelper(t *testing.T) {
	kerneltest.OneKernel(t)
	t.Parallel()
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		t.Parallel()
		w, _ := f.host(t, plugin, true)
		c := w.Container("ctr")
		a := w.attach(plugin, c, w.alone)
		for i := range a.steps {
			a.steps[i].conf = withMember(a.steps[i].conf, `"cni.dev/valid-attachments":[{"containerID":"ctr","ifname":"eth0"}]`)
		}
		for _, verb := range []spec.Verb{spec.Check, spec.Get, spec.GC, spec.Status, spec.GetVersion} {
			a.must(verb, a.last())
		}
		a.del()
	})
}

// The watch reports a delegate that is started, and a program of a shell.
func TestKernelWatchSeesHelpers(t *testing.T) {
	kerneltest.Slow(t)
	w := newWorld(t)
	conf := goodConf("bridge")
	a, started := w.watched(w.Expand(conf), w.Container("ctr").Env(spec.Status, product.ForceExec+"=1"), w.Path("bin/bridge"))
	w.must("STATUS with its delegate started", a)
	// Before its first program, package os checks in a child process whether the kernel has pidfds.
	if n := len(started); n < 2 || n > 3 || started[0] != started[n-2] || !strings.HasPrefix(started[n-1], "the program ") {
		t.Errorf("a delegate: %q", started)
	}
	a, started = w.watched("", nil, "/bin/sh", "-c", ": & wait; exec /bin/sh -c :")
	w.must("shell", a)
	if len(started) != 2 {
		t.Errorf("a shell: %q", started)
	}
}

// alone is a caller whose process must start no other.
func (w *world) alone(verb spec.Verb, applet, conf string, c applettest.Container, env ...string) answer {
	w.Helper()
	a, started := w.watched(w.Expand(conf), c.Env(verb, env...), w.Path("bin/"+applet))
	if len(started) != 0 {
		w.Errorf("%s %s starts %q", verb, applet, started)
	}
	return a
}

// watched is run, and also returns what the program starts.
func (w *world) watched(stdin string, env []string, argv ...string) (a answer, started []string) {
	w.Helper()
	list := w.Path("started")
	w.tracer = []string{w.Path("bin/watch"), list}
	a = w.run(stdin, env, argv...)
	w.tracer = nil
	text, err := os.ReadFile(list)
	if err == nil {
		err = os.Remove(list)
	}
	if err != nil {
		w.Fatalf("%v: %s", err, a.stderr)
	}
	return a, strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}
