package program

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeLabeller returns a labeller with a temporary directory as selinuxfs and a file as the
// thread's attribute.
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

// The label is set when the program starts, and reset afterwards, whatever happens.
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
			// the file, unlike the attribute, keeps what follows the newline
			if b, _ := os.ReadFile(l.attr); !strings.HasPrefix(string(b), "\n") {
				t.Errorf("the label is still set: %q", b)
			}
		})
	}
}

// Without SELinux, or if the label cannot be set, an error is returned and nothing starts.
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
