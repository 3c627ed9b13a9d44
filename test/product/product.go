// Package product makes the test binary of a package answer to the names of the applets, as the
// product does, so that tests run the code of this tree without building the product. It is for
// tests only.
package product

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/applets"
)

// ForceExec is a variable that makes an applet start plugins as processes even if they are built
// in.
const ForceExec = "CNIBOX_TEST_FORCE_EXEC"

// Usage is a variable with the file to which an applet writes the resources it has used.
const Usage = "CNIBOX_TEST_USAGE"

// Main is the TestMain of a package: it runs the tests, or the applet that the process is named
// after, which prepare may change first; nil: no change.
func Main(m *testing.M, prepare func()) {
	if _, ok := applets.Lookup(filepath.Base(os.Args[0])); !ok {
		os.Exit(m.Run())
	}
	if prepare != nil {
		prepare()
	}
	exit := applets.Main(os.Getenv(ForceExec) != "")
	if file := os.Getenv(Usage); file != "" {
		writeUsage(file)
	}
	os.Exit(exit)
}

// writeUsage writes the processor time of the process in nanoseconds, and its peak memory in KiB.
// The peak of wait4(2) would include the memory of the parent, which the process had before
// execve(2).
func writeUsage(file string) {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	status, _ := os.ReadFile("/proc/self/status")
	_, peak, _ := strings.Cut(string(status), "\nVmHWM:")
	peak, _, _ = strings.Cut(peak, "kB")
	text := fmt.Sprintf("%d %s", u.Utime.Nano()+u.Stime.Nano(), strings.TrimSpace(peak))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		panic(err)
	}
}

// Names returns the names of all applets.
func Names() (list []string) {
	for _, a := range applets.All() {
		list = append(list, a.Name)
	}
	return list
}

// Plugins returns the names of the applets that are plugins.
func Plugins() (list []string) {
	for _, a := range applets.All() {
		if a.Main == nil {
			list = append(list, a.Name)
		}
	}
	return list
}

// Install makes a directory with links from all applets to the test binary.
func Install(t testing.TB, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	for _, name := range Names() {
		err = errors.Join(err, os.Symlink(self, filepath.Join(dir, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
}
