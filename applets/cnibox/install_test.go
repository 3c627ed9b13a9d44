package cnibox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cnibox"
	"github.com/cnibox/cnibox/internal/fault"
)

// tree lists the files of a directory with what they lead to or contain, but for the binary.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		text, err := os.Readlink(path)
		if d.Type().IsRegular() {
			var b []byte
			if b, err = os.ReadFile(path); len(b) > 1000 {
				b = []byte("binary")
			}
			text = string(b)
		} else if d.IsDir() {
			err = nil
		}
		list = append(list, strings.TrimPrefix(path, dir+"/")+" "+strings.TrimSpace(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, "\n")
}

// An install that fails at any change leaves no name of another program changed, and nothing of its own
// but the copy, which is whole.
func TestInstallUndone(t *testing.T) {
	const program = "another program"
	table := applet.Table{&cnibox.Applet, {Name: "bridge"}, {Name: "loopback"}, {Name: "ptp"}}
	for n := 1; ; n++ {
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(dir+"/cnibox", []byte(program), 0o755), os.WriteFile(dir+"/bridge", []byte(program), 0o755),
			os.Symlink("/nonexistent/ptp", dir+"/ptp")); err != nil {
			t.Fatal(err)
		}
		before := tree(t, dir)
		var stderr strings.Builder
		changes, failed := 0, ""
		fault.Hook = func(what string) error {
			if changes++; changes == n {
				failed = what
				return errors.New("injected")
			}
			return nil
		}
		exit := cnibox.Applet.Main(t.Context(), applet.Process{Args: []string{"install", "--copy", "--keep", dir}, Applets: table,
			Stdout: &strings.Builder{}, Stderr: &stderr})
		fault.Hook = nil
		got := tree(t, dir)
		if failed == "" {
			want := ".cnibox-kept \n.cnibox-kept/bridge " + program + "\n.cnibox-kept/cnibox " + program + "\n.cnibox-kept/ptp /nonexistent/ptp\n" +
				"bridge #!" + dir + "/cnibox\ncnibox binary\nloopback #!" + dir + "/cnibox\nptp #!" + dir + "/cnibox"
			if exit != 0 || got != want {
				t.Errorf("exit code %d: %s\n%s\nwant\n%s", exit, stderr.String(), got, want)
			}
			return
		}
		if exit != 1 || !strings.Contains(stderr.String(), "injected") || got != before {
			t.Errorf("%d, %s: exit code %d: %s\n%s\nwant\n%s", n, failed, exit, stderr.String(), got, before)
		}
	}
}
