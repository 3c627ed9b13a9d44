package program_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/program"
)

// command returns a command whose stdin is do, what it shall do.
func command(do string, args ...string) (c *program.Command, stdout, stderr *strings.Builder) {
	stdout, stderr = new(strings.Builder), new(strings.Builder)
	return &program.Command{Args: args, Environ: os.Environ(), Stdin: strings.NewReader(do), Stdout: stdout, Stderr: stderr}, stdout, stderr
}

// link makes a file that is the test binary under another name.
func link(t *testing.T, file string) string {
	t.Helper()
	exe, err := os.Executable()
	if err == nil {
		err = os.Symlink(exe, file)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Commands are found as by the shell, with its exit codes.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := errors.Join(os.Mkdir("bin", 0o700), os.Mkdir("first", 0o700),
		os.WriteFile("first/rec", nil, 0o600), os.Mkdir("rec-dir", 0o700)); err != nil {
		t.Fatal(err)
	}
	link(t, "rec-here")
	link(t, "bin/rec")
	t.Setenv("PATH", strings.Join([]string{"", ".", filepath.Join(dir, "none"), filepath.Join(dir, "first"), filepath.Join(dir, "bin")}, ":"))
	tests := map[string]struct {
		name, do string
		exit     int
		out, err string // err: part of the error; "": none
	}{
		"behind a file of the name": {"rec", "print hello", 0, "hello", ""},
		"its exit code":             {"rec", "exit 42", 42, "", ""},
		"ended by a signal":         {"rec", "kill", 128 + 9, "", ""},
		"a path":                    {"./rec-here", "print here", 0, "here", ""},
		"not on PATH":               {"nosuch", "", 127, "", "on PATH"},
		"only in a relative part":   {"rec-here", "", 127, "", "on PATH"},
		"no name":                   {"", "", 127, "", "on PATH"},
		"no such path":              {"./none", "", 127, "", "no such"},
		"a directory":               {"./rec-dir", "", 126, "", "permission denied"},
		"not executable":            {"first/rec", "", 126, "", "permission denied"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, stdout, _ := command(tt.do, tt.name)
			exit, err := c.Run()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got error %v, want %q", err, tt.err)
			}
			if exit != tt.exit || stdout.String() != tt.out {
				t.Errorf("got exit %d, %q, want %d, %q", exit, stdout, tt.exit, tt.out)
			}
		})
	}
}

// More than a pipe holds is copied in both directions, and stdin need not be read.
func TestCommandStreams(t *testing.T) {
	rec := link(t, filepath.Join(t.TempDir(), "rec"))
	const out, log = 300 << 10, 200 << 10
	c, stdout, stderr := command("fail "+strings.Repeat("a", out)+"|"+strings.Repeat("b", log), rec)
	if exit, err := c.Run(); err != nil || exit != 2 || stdout.Len() != out || stderr.Len() != log {
		t.Errorf("got exit %d, %v, %d bytes and %d", exit, err, stdout.Len(), stderr.Len())
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c, _, stderr = command(strings.Repeat("x", out), exe, "-test.run=^$")
	if exit, err := c.Run(); err != nil || exit != 0 {
		t.Errorf("got exit %d, %v, %s", exit, err, stderr)
	}
}

// Signals are forwarded to the command.
func TestCommandSignal(t *testing.T) {
	c, _, _ := command("sleep", link(t, filepath.Join(t.TempDir(), "rec")))
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
	_, slave := kerneltest.Terminal(t)
	defer slave.Close()
	c := exec.Command(link(t, filepath.Join(t.TempDir(), "rec")))
	c.Stdin, c.Stdout = strings.NewReader("command"), slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1}
	if c.Run(); c.ProcessState.ExitCode() != 128+int(syscall.SIGINT) {
		t.Errorf("got %v", c.ProcessState)
	}
}
