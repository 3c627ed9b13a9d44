package chain_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cnibox/chain"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// command returns a command whose stdin is do, what a recorder shall do.
func command(t *testing.T, do string, args ...string) (c *chain.Command, stdout, stderr *strings.Builder) {
	t.Helper()
	stdout, stderr = new(strings.Builder), new(strings.Builder)
	return &chain.Command{
		Args: args, Environ: append(os.Environ(), "RECORD="+filepath.Join(t.TempDir(), "record")),
		Stdin: strings.NewReader(do), Stdout: stdout, Stderr: stderr,
	}, stdout, stderr
}

// Commands are found as by the shell, with its exit codes.
func TestCommand(t *testing.T) {
	w := newFixture(t, "rec")
	t.Chdir(w.dir)
	exe, err := os.Executable()
	if err = errors.Join(err, os.Symlink(exe, "rec-here"), os.Mkdir("first", 0o700),
		os.WriteFile("first/rec", nil, 0o600), os.Mkdir("rec-dir", 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", strings.Join([]string{"", ".", filepath.Join(w.dir, "none"), filepath.Join(w.dir, "first"), w.bin}, ":"))
	tests := map[string]struct {
		name, do string
		exit     int
		out, err string // err: part of the error; "": none
	}{
		"behind a file of the name": {"rec", `{"do":"print hello"}`, 0, "hello", ""},
		"its exit code":             {"rec", `{"do":"exit 42"}`, 42, "", ""},
		"ended by a signal":         {"rec", `{"do":"kill"}`, 128 + 9, "", ""},
		"a path":                    {"./rec-here", `{"do":"print here"}`, 0, "here", ""},
		"not on PATH":               {"nosuch", "", 127, "", "on PATH"},
		"only in a relative part":   {"rec-here", "", 127, "", "on PATH"},
		"no name":                   {"", "", 127, "", "on PATH"},
		"no such path":              {"./none", "", 127, "", "no such"},
		"a directory":               {"./rec-dir", "", 126, "", "permission denied"},
		"not executable":            {"first/rec", "", 126, "", "permission denied"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, stdout, _ := command(t, tt.do, tt.name)
			exit, err := c.Run()
			wantErr(t, err, tt.err)
			if exit != tt.exit || stdout.String() != tt.out {
				t.Errorf("got exit %d, %q, want %d, %q", exit, stdout, tt.exit, tt.out)
			}
		})
	}
}

// More than a pipe holds is copied in both directions, and stdin need not be read.
func TestCommandStreams(t *testing.T) {
	w := newFixture(t, "rec")
	rec := filepath.Join(w.bin, "rec")
	const out, log = 300 << 10, 200 << 10
	c, stdout, stderr := command(t, `{"do":"fail `+strings.Repeat("a", out)+"|"+strings.Repeat("b", log)+`"}`, rec)
	if exit, err := c.Run(); err != nil || exit != 2 || stdout.Len() != out || stderr.Len() != log {
		t.Errorf("got exit %d, %v, %d bytes and %d", exit, err, stdout.Len(), stderr.Len())
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, _, stderr = command(t, strings.Repeat("x", out), exe, "-test.run=^$")
	if exit, err := c.Run(); err != nil || exit != 0 {
		t.Errorf("got exit %d, %v, %s", exit, err, stderr)
	}
}

// Signals are forwarded to the command.
func TestCommandSignal(t *testing.T) {
	w := newFixture(t, "rec")
	c, _, _ := command(t, `{"do":"sleep"}`, filepath.Join(w.bin, "rec"))
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	c.Signals = signals
	if exit, err := c.Run(); err != nil || exit != 128+int(syscall.SIGTERM) {
		t.Errorf("got exit %d, %v", exit, err)
	}
}

// A signal that arrived before the command started is forwarded, also in the foreground of a
// terminal.
func TestCommandSignalEarly(t *testing.T) {
	w := newFixture(t, "rec")
	_, slave := kerneltest.Terminal(t)
	defer slave.Close()
	c := exec.Command(filepath.Join(w.bin, "rec"))
	c.Stdin, c.Stdout, c.Env = strings.NewReader(`{"do":"command"}`), slave, w.local.Environ
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	if c.Run(); c.ProcessState.ExitCode() != 128+int(syscall.SIGINT) {
		t.Errorf("got %v", c.ProcessState)
	}
}

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
	}
}
