// Package product makes the test binary of a package answer to the names of the applets, as the
// product does, so that tests run the code of this tree without building the product. It is for
// tests only.
package product

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/internal/fault"
)

// ForceExec is a variable that makes an applet start plugins as processes even if they are built
// in.
const ForceExec = "CNIBOX_TEST_FORCE_EXEC"

// usageFile is a variable with the file to which an applet writes its [Usage].
const usageFile = "CNIBOX_TEST_USAGE"

// Usage is what an applet has done and used in its process.
type Usage struct {
	Work      map[fault.Work]int
	Allocated int // bytes of Go's heap in all, also those that were freed
	Peak      int // most memory at once, in KiB
}

// MeasureTo returns the environment by which an applet writes its usage to a file.
func MeasureTo(file string) string { return usageFile + "=" + file }

// ReadUsage reads what [MeasureTo] had written, and removes it.
func ReadUsage(file string) (u Usage, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return u, err
	}
	return u, errors.Join(json.Unmarshal(text, &u), os.Remove(file))
}

// Main is the TestMain of a package: it runs the tests, or the applet that the process is named
// after, which prepare may change first; nil: no change. Under its name it is the watcher.
func Main(m *testing.M, prepare func()) {
	if filepath.Base(os.Args[0]) == watcher {
		os.Exit(watchMain())
	}
	name, _ := applets.Called(os.Args)
	if _, ok := applets.Lookup(filepath.Base(name)); !ok {
		os.Exit(m.Run())
	}
	if prepare != nil {
		prepare()
	}
	file := os.Getenv(usageFile)
	if file == "" {
		os.Exit(applets.Main(os.Getenv(ForceExec) != ""))
	}
	var exit int
	work := fault.Count(func() { exit = applets.Main(os.Getenv(ForceExec) != "") })
	writeUsage(file, work)
	os.Exit(exit)
}

// writeUsage writes the usage of this process. The peak of wait4(2) would include the memory of the
// parent, which the process had before execve(2).
func writeUsage(file string, work map[fault.Work]int) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, _ := os.ReadFile("/proc/self/status")
	_, peak, _ := strings.Cut(string(status), "\nVmHWM:")
	u := Usage{Work: work, Allocated: int(m.TotalAlloc)}
	_, err := fmt.Sscan(peak, &u.Peak)
	text, encodeErr := json.Marshal(u)
	if err := errors.Join(err, encodeErr, os.WriteFile(file, text, 0o600)); err != nil {
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
		if a.Plugin != nil {
			list = append(list, a.Name)
		}
	}
	return list
}

// Install makes a directory with links from all applets, and the watcher, to the test binary.
func Install(t testing.TB, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	for _, name := range append(Names(), watcher) {
		err = errors.Join(err, os.Symlink(self, filepath.Join(dir, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
}
