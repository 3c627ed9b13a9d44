//go:build !no_portmap

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// A port on which a process of the host listens is refused with the process's name, and nothing is
// attached. --force publishes it, and ports on other addresses are free. The test is not parallel:
// a process that another test forks has copies of its sockets for a moment.
func TestKernelRunPublishInUse(t *testing.T) {
	kerneltest.Slow(t)
	r := newRunner(t)
	r.Occupy(r.NS, "tcp4", "0.0.0.0:22")
	r.Occupy(r.NS, "tcp4", "127.0.0.1:25")
	r.Occupy(r.NS, "tcp", "[::]:80")
	r.Occupy(r.NS, "udp6", "[::1]:53")
	self := fmt.Sprintf("(pid %d)", os.Getpid())
	for _, tt := range []struct {
		flags string
		busy  string // socket in the error; "": none
	}{
		{"-p 22:22", "tcp 0.0.0.0:22"},
		{"-p 127.0.0.1:22:22", "tcp 0.0.0.0:22"},
		{"-p 8022:22 -p 22:22", "tcp 0.0.0.0:22"},
		{"-p 22:22 --force", ""},
		{"-p 22:22/udp", ""},
		{"-p 25:25", "tcp 127.0.0.1:25"},
		{"-p 127.0.0.2:25:25", ""},
		{"-p 127.0.0.1:80:80", "tcp [::]:80"},
		{"-p 53:53/udp", ""}, // what is sent to [::1] stays with the host
		{"-p 127.0.0.1:53:53/udp", ""},
	} {
		args := append([]string{"run", "--conf-dir", r.Path("none"), "--cache-dir", "cni"}, strings.Fields(tt.flags)...)
		cmd := r.command()
		cmd.Args = append([]string{r.Path("bin/cni-exec")}, append(args, "--", "true")...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := r.NS.Do(cmd.Run)
		text := out.String()
		switch {
		case tt.busy == "" && err != nil:
			t.Errorf("%s: %v\n%s", tt.flags, err, text)
		case tt.busy == "":
		case cmd.ProcessState.ExitCode() != 1 || !strings.Contains(text, tt.busy+": ") || !strings.Contains(text, self) || !strings.Contains(text, "--force"):
			t.Errorf("%s: got %v, want exit 1, %q, %s and --force:\n%s", tt.flags, err, tt.busy, self, text)
		}
		r.clean()
	}
}
