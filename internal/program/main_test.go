package program_test

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/program"
)

// TestMain behaves as stdin says if the test binary has another name.
func TestMain(m *testing.M) {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "rec") {
		os.Exit(behave())
	}
	os.Exit(m.Run())
}

// behave does what stdin says, and returns the exit code.
func behave() (code int) {
	stdin, _ := io.ReadAll(os.Stdin)
	switch what, text, _ := strings.Cut(string(stdin), " "); what {
	case "print":
		fmt.Print(text)
	case "exit":
		fmt.Sscan(text, &code)
	case "fail": // out|err
		out, stderr, _ := strings.Cut(text, "|")
		fmt.Print(out)
		fmt.Fprint(os.Stderr, stderr)
		return 2
	case "sleep":
		hang()
	case "kill":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		hang()
	case "command": // runs a command that sleeps, with an interrupt pending
		c := program.Command{Args: os.Args[:1], Stdin: strings.NewReader("sleep"), Stdout: os.Stdout, Stderr: os.Stderr}
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT) // since SIGINT may be ignored for tests in the background
		signals <- syscall.SIGINT
		c.Signals = signals
		code, _ = c.Run()
	}
	return code
}

// hang never returns: who does not kill it waits until the test run ends.
func hang() {
	for {
		time.Sleep(time.Hour)
	}
}
