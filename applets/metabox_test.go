package applets_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/applets"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A metaBox is a host and a container for plugins that work on a result.
type metaBox struct {
	t          *testing.T
	host, cont *rtnl.NS
	path       string // of cont
	dir        string // dataDir of the plugin
}

func newMetaBox(t *testing.T) *metaBox {
	t.Helper()
	b := &metaBox{t: t, host: kerneltest.NS(t), cont: kerneltest.NS(t), dir: filepath.Join(t.TempDir(), "state")}
	b.path = kerneltest.NSPath(t, b.cont)
	return b
}

// run runs a verb of a plugin in the host's namespace. keys are the plugin's
// own, as `"mtu":1400`.
func (b *metaBox) run(plugin string, v spec.Verb, c spec.Call, keys, prev string) (*spec.Result, error) {
	b.t.Helper()
	a, ok := applets.Lookup(plugin)
	if !ok {
		b.t.Fatalf("no applet %s", plugin)
	}
	if keys != "" {
		keys = "," + keys
	}
	if prev != "" {
		keys += `,"prevResult":` + prev
	}
	c.Verb = v
	r, err := spec.NewRequest(c, fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net1","type":%q,"dataDir":%q%s}`, plugin, b.dir, keys))
	if err != nil {
		return nil, err
	}
	r.Warn = func(format string, args ...any) { b.t.Logf("warning: "+format, args...) }
	var res *spec.Result
	err = b.host.Do(func() error {
		var err error
		res, err = a.Verbs.Do(context.Background(), r)
		return err
	})
	return res, err
}

// call is about eth0 of container c1.
func (b *metaBox) call() spec.Call {
	return spec.Call{ContainerID: "c1", IfName: "eth0", NetNS: b.path}
}

func (b *metaBox) must(res *spec.Result, err error) *spec.Result {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	return res
}

// prev is a result with eth0 in the container, and eth0 on the host too.
func (b *metaBox) prev() string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01"},
		{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1500,"sandbox":%q}],"ips":[{"address":"10.9.0.2/24","interface":1}]}`, b.path)
}

// files lists what the plugin keeps.
func (b *metaBox) files() string {
	entries, _ := os.ReadDir(b.dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
