package applettest

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// ProcessTimeout is the time after which a process is considered hung. No test asks for less: how long one
// takes is the machine's matter.
var ProcessTimeout = kerneltest.Timeout(5 * time.Minute)

// Env returns the variables of a runtime for eth0 of a container, which those in more override.
func (c Container) Env(verb spec.Verb, more ...string) []string {
	return append([]string{"CNI_COMMAND=" + string(verb), "CNI_CONTAINERID=" + c.ID, "CNI_IFNAME=eth0", "CNI_NETNS=" + c.Path}, more...)
}

// Process runs a program on the host, in $DIR and with $DIR/bin as CNI_PATH unless env sets it, and
// returns what [Host.Serve] returns. It keeps cmd.Stdout if that is set. A hung process is killed,
// which is an error.
func (h *Host) Process(cmd *exec.Cmd, stdin string, env ...string) (exit int, stdout, stderr string, err error) {
	var out, diag bytes.Buffer
	cmd.Dir, cmd.Env = h.Dir, append([]string{"CNI_PATH=" + h.Path("bin")}, env...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &diag
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	if h.Here {
		err = cmd.Start()
	} else {
		err = h.NS.Do(cmd.Start)
	}
	if err != nil {
		return -1, "", "", err
	}
	stuck := time.AfterFunc(ProcessTimeout, func() { cmd.Process.Kill() })
	err = cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) || errors.Is(err, syscall.EPIPE) {
		err = nil // a plugin need not read stdin
	}
	if !stuck.Stop() {
		err = fmt.Errorf("%q was still running after %s", cmd.Args, ProcessTimeout)
	}
	return cmd.ProcessState.ExitCode(), out.String(), diag.String(), err
}
