// Package dbustest gives tests a message bus of their own, Debian's dbus-daemon,
// and a fake firewalld on it. It is for tests only. It has its own reading of
// the protocol, so that a mistake in package dbus does not meet the same one here.
package dbustest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// config is a bus on which everything is allowed.
const config = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>custom</type>
  <listen>unix:path=%s</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/><allow user="*"/>
  </policy>
</busconfig>
`

// Bus starts a bus for the test and returns the path of its socket. Where
// dbus-daemon is not installed the test is skipped.
func Bus(t testing.TB) string {
	t.Helper()
	socket, start := Restartable(t)
	start()
	return socket
}

// Restartable is Bus for a bus that the test starts, as often as it likes at the same socket, and
// stops.
func Restartable(t testing.TB) (socket string, start func() (stop func())) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("SKIPPED: dbus-daemon is not installed")
	}
	dir, err := os.MkdirTemp("", "bus") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, conf := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, config, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	return socket, func() (stop func()) {
		t.Helper()
		cmd := exec.Command(program, "--nofork", "--nopidfile", "--nosyslog", "--print-address", "--config-file="+conf)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		stop = func() {
			cmd.Process.Kill()
			cmd.Wait()
		}
		t.Cleanup(stop)
		// It prints the address when it listens.
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "unix:path=") {
			t.Fatalf("dbus-daemon: %q, %v", line, err)
		}
		return stop
	}
}
