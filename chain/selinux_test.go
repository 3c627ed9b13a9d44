package chain

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A fake kernel with SELinux: any file system stands in for selinuxfs, and a file for
// the thread's attribute.
func fakeLabeller(t *testing.T) labeller {
	t.Helper()
	dir := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	attr := filepath.Join(dir, "exec")
	if err := os.WriteFile(attr, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return labeller{dir, int64(st.Type), attr}
}

// The program starts when the label is set, and the label is taken back whatever
// becomes of it.
func TestLabelled(t *testing.T) {
	for name, tt := range map[string]struct{ script, want string }{
		"runs":  {`grep -q '^a_u:b_r:c_t:s0$' "$0"`, ""},
		"fails": {`echo no such policy >&2; exit 3`, `exit status 3: no such policy`},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			l := fakeLabeller(t)
			err := l.run(t.Context(), "/bin/sh", "a_u:b_r:c_t:s0", []string{"sh", "-c", tt.script, l.attr})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			}
			// the file keeps what is longer than the newline
			if b, _ := os.ReadFile(l.attr); !strings.HasPrefix(string(b), "\n") {
				t.Errorf("the label is still set: %q", b)
			}
		})
	}
}

// Without SELinux nothing starts, and a label that cannot be set is reported.
func TestLabelledWithoutSELinux(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	run := func(l labeller) error {
		return l.run(t.Context(), "/bin/sh", "label", []string{"sh", "-c", `: >"$0"`, started})
	}
	other, missing, refused := fakeLabeller(t), fakeLabeller(t), fakeLabeller(t)
	other.magic++
	missing.mount += "/nowhere"
	refused.attr += "/nowhere"
	for _, l := range []labeller{other, missing} {
		if err := run(l); err == nil || !strings.Contains(err.Error(), "SELinux is disabled") {
			t.Errorf("got %v", err)
		}
	}
	if err := run(refused); err == nil || !strings.Contains(err.Error(), `SELinux label "label"`) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the program was started")
	}
}
