package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/sandbox"
)

// TestMain runs the checks of the second process.
func TestMain(m *testing.M) {
	if !sandbox.Inside() {
		os.Exit(m.Run())
	}
	if err := checkSandbox(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	os.Exit(7)
}

// checkSandbox checks that the sandbox is empty, and leaves files in it.
func checkSandbox() error {
	if err := sandbox.Setup(); err != nil {
		return err
	}
	c, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	links, err := c.Links()
	if err != nil {
		return err
	}
	if len(links) != 1 || !links[0].Up {
		return fmt.Errorf("got links %+v; want lo alone, up", links)
	}
	for _, dir := range []string{"/run", "/var/lib/cni"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(entries) > 0 && dir != "/run" || len(entries) > 1 {
			return fmt.Errorf("%s is not empty: %v", dir, entries)
		}
	}
	if names, _ := filepath.Glob("/var/lib/*"); len(names) < 2 { // the only error is one of the pattern
		return fmt.Errorf("/var/lib lost its other directories: %s", names)
	}
	if err := os.WriteFile("/var/lib/cni/cnibox-sandbox-test", nil, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(os.Getenv("LEFTOVER"), nil, 0o600); err != nil {
		return err
	}
	return checkPinned()
}

// checkPinned makes a namespace, checks that another process can enter it, and removes it.
func checkPinned() error {
	ns, err := sandbox.NewNetNS("a")
	if err != nil {
		return err
	}
	want, err := os.Stat(ns.Path)
	if err != nil {
		return err
	}
	err = ns.Do(func() error {
		call := sandbox.Call{Argv: []string{"/bin/ls", "-Li", "/proc/self/ns/net"}}
		out, _, err := call.Run()
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(out), fmt.Sprint(inode(want))) {
			return fmt.Errorf("the process ran in %s; want inode %d", out, inode(want))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := ns.Remove(); err != nil {
		return err
	}
	if _, err := os.Stat(ns.Path); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("after Remove: %s", fmt.Sprint(err))
	}
	return nil
}

// Changes in the sandbox are not visible outside, and its exit code is returned.
func TestKernelSandbox(t *testing.T) {
	leftover := "/run/cnibox-sandbox-test"
	code, err := sandbox.Start("LEFTOVER=" + leftover)
	if errors.Is(err, sandbox.ErrPrivilege) && os.Getenv("CNIBOX_KERNEL") != "require" {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil || code != 7 {
		t.Fatalf("got exit code %d, %v; want 7", code, err)
	}
	for _, file := range []string{leftover, "/var/lib/cni/cnibox-sandbox-test"} {
		if _, err := os.Stat(file); err == nil {
			os.Remove(file)
			t.Errorf("%s of the sandbox is on the machine", file)
		}
	}
}

// With a marker set by hand, Setup does not empty directories of the machine.
func TestSetupRefusesOldNamespaces(t *testing.T) {
	mnt, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	net, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, marker := range []string{"1", mnt + " " + net, mnt + " net:[1]", "mnt:[1] " + net} {
		t.Setenv("CNIBOX_SANDBOX", marker)
		if err := sandbox.Setup(); err == nil || !strings.Contains(err.Error(), "not new") {
			t.Fatalf("marker %q: got %v, want a refusal", marker, err)
		}
	}
}

// The error of a call has the process's message, on stdout or stderr.
func TestCallErrors(t *testing.T) {
	tests := map[string]struct{ script, want string }{
		"error object": {`echo '{"code":7,"msg":"bad subnet","details":"x"}'; exit 1`, "exit status 1: bad subnet x"},
		"stderr":       {`echo oops >&2; exit 2`, "exit status 2: oops"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := sandbox.Call{Argv: []string{"/bin/sh", "-c", tt.script}}.Run()
			if err == nil || !strings.HasSuffix(err.Error(), tt.want) {
				t.Errorf("got %v, want …%s", err, tt.want)
			}
		})
	}
}
func inode(st os.FileInfo) uint64 { return st.Sys().(*syscall.Stat_t).Ino }
