package e2e

import (
	"os"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A delCell is one set of things that are missing when DEL is called.
type delCell struct {
	harm   func(a *attached, m *endable, f fixture)
	gone   bool // the namespace; only the host is compared
	bare   bool // there is no other attachment, whose state would be deleted, too
	below  bool // the master or the bridge is gone
	twice  bool
	daemon bool // for plugins that have one
}

// delCells are the columns of the table of DELs; its rows are the plugins.
var delCells = map[string]delCell{
	"nothing missing": {},
	"a second time":   {twice: true},
	"namespace empty": {gone: true, harm: func(a *attached, m *endable, f fixture) { f.end(m); a.c.Path = "" }},
	"namespace missing": {gone: true, harm: func(a *attached, m *endable, f fixture) {
		f.end(m)
		if err := os.Remove(m.Path); err != nil {
			a.w.Fatal(err)
		}
	}},
	"namespace a stale file": {gone: true, harm: func(a *attached, m *endable, f fixture) { f.end(m) }},
	// like a container whose namespace has lost its path but not its processes
	"namespace empty, container alive": {gone: true, harm: func(a *attached, m *endable, _ fixture) { a.c.Path = "" }},
	"link missing":                     {harm: func(a *attached, m *endable, _ fixture) { m.deleteEth0() }},
	"link and prevResult missing":      {harm: func(a *attached, m *endable, _ fixture) { m.deleteEth0(); a.prev = "" }},
	"without prevResult":               {harm: func(a *attached, m *endable, _ fixture) { a.prev = "" }},
	"invalid configuration": {harm: func(a *attached, m *endable, f fixture) {
		last := &a.steps[a.last()]
		last.conf = withMember(last.conf, f.Invalid[0])
	}},
	"records missing":       {bare: true, harm: func(a *attached, m *endable, f fixture) { a.w.dropFiles() }},
	applettest.BelowMissing: {bare: true, below: true, harm: func(a *attached, m *endable, f fixture) { f.takeAway(a.w) }},
	"daemon missing":        {bare: true, daemon: true, harm: func(a *attached, m *endable, _ fixture) { a.w.stop() }},
	"daemon and namespace missing": {bare: true, daemon: true, gone: true, harm: func(a *attached, m *endable, f fixture) {
		a.w.stop()
		f.end(m)
	}},
	"after GC": {harm: func(a *attached, m *endable, _ fixture) {
		for i := range a.steps {
			a.steps[i].conf = withMember(a.steps[i].conf, `"cni.dev/valid-attachments":[{"containerID":"other","ifname":"eth0"}]`)
			a.must(spec.GC, i)
		}
	}},
}

// TestKernelDelMatrix is the table of DELs: for each plugin and each thing that can be missing, DEL
// succeeds, prints nothing on stdout, and leaves no link, address, route, rule, lease or record on
// the host or in the container. Another attachment does not change. The reference fails or leaks in
// many of the cells.
func TestKernelDelMatrix(t *testing.T) {
	kerneltest.OneKernel(t)
	t.Parallel()
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		f.NeedChain(t)
		for name, cell := range delCells {
			t.Run(name, func(t *testing.T) {
				if why := f.Excuse(name); why != "" {
					t.Logf("there is no such cell: %s", why)
					return
				}
				t.Parallel()
				cell.run(t, plugin, f)
			})
		}
	})
}

func (cell delCell) run(t *testing.T, plugin string, f fixture) {
	w, other := f.host(t, plugin, cell.bare)
	if cell.daemon && w.stop == nil {
		t.Log("there is no such cell: it has no daemon")
		return
	}
	if cell.below {
		f.takeAway(w)
	}
	m := w.endable("ctr")
	f.enter(w, m.Container)
	host, cont := w.Snapshot(), w.Snapshot(m.Container)
	if cell.below {
		f.furnish(w)
	}
	a := w.attach(plugin, m.Container, w.inProcess)
	if cell.harm != nil {
		cell.harm(a, m, f)
	}
	a.del()
	if cell.twice {
		a.del()
	}
	if cell.gone {
		w.Same("DEL", host, w.Snapshot())
	} else {
		w.Same("DEL", cont, w.Snapshot(m.Container))
	}
	if !cell.bare {
		other.must(spec.Check, other.last())
	}
}

// end deletes the namespace of the attachment.
func (f fixture) end(m *endable) {
	if f.Hardware {
		m.returnDevice()
	}
	m.w.End(m.Container)
}

// deleteEth0 deletes eth0 in the container, if there is one.
func (m *endable) deleteEth0() {
	kerneltest.Brief(m.w, m.NS, func(c *rtnl.Conn) error {
		links, err := c.Links()
		for _, l := range links {
			if l.Name == "eth0" {
				return c.DelLink("eth0")
			}
		}
		return err
	})
}

// dropFiles deletes all directories with state of plugins.
func (w *world) dropFiles() {
	w.Helper()
	entries, err := os.ReadDir(w.Dir)
	for _, e := range entries {
		if e.Name() != "bin" && e.IsDir() {
			err = os.RemoveAll(w.Path(e.Name()))
		}
		if err != nil {
			w.Fatal(err)
		}
	}
}
