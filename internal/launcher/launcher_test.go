package launcher_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/launcher"
)

func TestText(t *testing.T) {
	longest := "/" + strings.Repeat("p", 124)
	for program, want := range map[string]string{
		"/opt/cni/bin/cnibox": "", longest: "", longest + "p": "at most 125", "cnibox": "must be absolute", "": "must be absolute",
		"/a b/cnibox": "at a space", "/a\tb": "at a space", "/a\nb": "at a space",
	} {
		text, err := launcher.Text(program)
		if want == "" && (err != nil || text != "#!"+program+"\n") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %q, %v, want %q", program, text, err, want)
		}
	}
}

// A file starts the program if the kernel would, and in another mount of the directory.
func TestStarts(t *testing.T) {
	dir := t.TempDir()
	program, another := filepath.Join(dir, "cnibox"), filepath.Join(dir, "another")
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(program, "program", 0o755)
	write(another, "another", 0o755)
	self, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bridge")
	for name, tt := range map[string]struct {
		make func()
		want bool
	}{
		"launcher":              {func() { write(file, "#!"+program+"\n", 0o755) }, true},
		"of another mount":      {func() { write(file, "#!/nonexistent/bin/cnibox\n", 0o755) }, true},
		"link":                  {func() { os.Symlink("cnibox", file) }, true},
		"hard link":             {func() { os.Link(program, file) }, true},
		"missing":               {func() {}, false},
		"dangling link":         {func() { os.Symlink("nothing", file) }, false},
		"not executable":        {func() { write(file, "#!"+program+"\n", 0o644) }, false},
		"of another program":    {func() { write(file, "#!"+another+"\n", 0o755) }, false},
		"of a missing program":  {func() { write(file, "#!/nonexistent/bin/none\n", 0o755) }, false},
		"relative":              {func() { write(file, "#!cnibox\n", 0o755) }, false},
		"with an argument":      {func() { write(file, "#!"+program+" help\n", 0o755) }, false},
		"with a second line":    {func() { write(file, "#!"+program+"\n\n", 0o755) }, false},
		"without end of line":   {func() { write(file, "#!"+program, 0o755) }, false},
		"another program, long": {func() { write(file, "#!"+program+"\n"+strings.Repeat("x", 1<<20), 0o755) }, false},
		"pipe":                  {func() { unix.Mkfifo(file, 0o755) }, false},
		"directory":             {func() { os.Mkdir(file, 0o755) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			tt.make()
			defer os.Remove(file)
			if got := launcher.Starts(file, self); got != tt.want {
				t.Errorf("Starts is %t, want %t", got, tt.want)
			}
		})
	}
}
