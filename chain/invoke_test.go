package chain_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A plugin gets the CNI variables of its call, not those of this process.
func TestEnvironOfCall(t *testing.T) {
	w := newFixture(t, "rec")
	w.local.Environ = append([]string{"CNI_COMMAND=STALE", "CNI_ARGS=STALE=1", "CNI_IFNAME="}, w.local.Environ...)
	r, err := spec.NewRequest(spec.Call{Verb: spec.Del, ContainerID: "c", IfName: "eth0"}, []byte(`{"name":"n","type":"rec"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.local.Invoke(t.Context(), "rec", r); err != nil {
		t.Fatal(err)
	}
	for _, got := range w.wantCalls("DEL rec") {
		if got.Args != "" || got.IfName != "eth0" {
			t.Errorf("got %+v", got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.local.Invoke(ctx, "rec", r)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.wantCalls("") // the plugin is not started
}

// A plugin's file that starts this binary is built in, another program is not.
func TestBuiltInLauncher(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, line := range map[string]string{"ours": "#!" + exe + "\n", "theirs": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(line), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l := &chain.Invoker{Path: []string{dir}, Lookup: func(string) (spec.Plugin, bool) { return spec.Plugin{}, true }}
	for name, want := range map[string]bool{"ours": true, "theirs": false} {
		if builtIn, err := l.Find(name); err != nil || builtIn != nil != want {
			t.Errorf("%s: %v, %v, want built in %t", name, builtIn, err, want)
		}
		if l.Known(name) == nil {
			t.Errorf("%s: the plugin of that name is not known", name)
		}
	}
}
