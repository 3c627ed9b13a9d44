package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"cnibox/applets"
	"cnibox/applets/applet"
	"cnibox/internal/script"
)

// TestMain lets the test binary answer to the names of the applets, as the
// product does.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	if _, ok := applets.Lookup(name); !ok {
		os.Exit(m.Run())
	}
	armFaults()
	ctx, cancel := context.WithCancelCause(context.Background())
	listening := make(chan struct{})
	go endOnSignal(cancel, listening)
	os.Exit(applets.Run(ctx, name, applet.Process{
		Args:      os.Args[1:],
		Getenv:    os.Getenv,
		Environ:   os.Environ(),
		Stdin:     os.Stdin,
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
		Threads:   func() { reserveThreads(listening) },
		ForceExec: os.Getenv(script.ForceExec) != "",
	}))
}

func names() (list []string) {
	for _, a := range applets.All() {
		list = append(list, a.Name)
	}
	return list
}

func TestScripts(t *testing.T) {
	script.Suite{Dir: "testdata/script/plain", Applets: names(), Plain: true}.Run(t)
}

func TestKernelScripts(t *testing.T) {
	script.Suite{Dir: "testdata/script", Applets: names()}.Run(t)
}
