package cnibox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"cnibox/applets/applet"
	"cnibox/internal/disk"
)

// executable is the running file, whatever links led to it.
// /proc says it, since argv[0] is a link or any text.
const executable = "/proc/self/exe"

// installCommand lays the links of all applets, or of those named, in a folder.
// Exact names only: a suffix would be a guess of what to write where.
func installCommand(p applet.Process, args []string) int {
	create := len(args) > 0 && args[0] == "--create"
	if create {
		args = args[1:]
	}
	switch {
	case len(args) == 0:
		return usage(p, "install needs a directory")
	case strings.HasPrefix(args[0], "-"):
		return usage(p, "install has no flag %s", args[0])
	}
	var names []string
	for _, a := range p.Applets {
		names = append(names, a.Name)
	}
	if len(args) > 1 {
		names = args[1:]
	}
	for _, name := range names {
		if a, ok := p.Applets.Lookup(name); !ok || a.Name != name {
			return usage(p, "no applet is named %q%s", name, suggest(p.Applets, name))
		}
	}
	text, err := install(args[0], names, create)
	if err != nil {
		fmt.Fprintf(p.Stderr, "cnibox: install: %s\n", err)
		return 1
	}
	fmt.Fprintf(p.Stdout, "cnibox: %s\n", text)
	return 0
}

// install lays a relative link to this binary in dir for each name. A dir that is missing
// is created if the caller says so: it may be mistyped. Each link is laid by rename: a name always leads to
// the old file or to the new one, no file is written into (it may be running,
// or a link to the binary of all applets), and a second call changes nothing.
// Directories and special files are refused before the first change.
//
// The links are relative: a folder of plugins that is mounted elsewhere, with the
// binary in or beside it, still works. What it did comes back as a line for people.
func install(dir string, names []string, create bool) (text string, err error) {
	binary, err := os.Readlink(executable)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("this binary has no path any more: %w", err)
	}
	if create {
		err = os.MkdirAll(dir, 0o755)
	} else if _, err = os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%s: no such directory; --create creates it", dir)
	}
	if err != nil {
		return "", err
	}
	// Links are relative to where the folder really is.
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", err
	}
	target, err := filepath.Rel(dir, binary)
	if err != nil {
		return "", err
	}
	lay, replaced, err := plan(dir, binary, target, names)
	if err != nil {
		return "", err
	}
	if err := createLinks(dir, target, lay); err != nil {
		return "", err
	}
	text = fmt.Sprintf("%s: all %d names lead to %s; %d links laid", dir, len(names), target, len(lay))
	if len(replaced) > 0 {
		text += ", in place of older files: " + strings.Join(replaced, " ")
	}
	return text, nil
}

// plan returns the names whose links are to be laid, and those of them that
// belong to something else now.
// It looks and changes nothing. A link that is right already is not laid again.
func plan(dir, binary, target string, names []string) (lay, replaced []string, err error) {
	for _, name := range names {
		path := filepath.Join(dir, name)
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			lay = append(lay, name)
			continue
		case err != nil:
			return nil, nil, err
		case path == binary: // the binary itself lies here, under an applet's name
			continue
		case st.Mode()&os.ModeSymlink != 0:
			if now, err := os.Readlink(path); err == nil && now == target {
				continue
			}
		case !st.Mode().IsRegular():
			return nil, nil, fmt.Errorf("%s is neither a file nor a link, and stays; nothing was changed", path)
		}
		lay, replaced = append(lay, name), append(replaced, name)
	}
	return lay, replaced, nil
}

// createLinks makes each link under a name that nobody has and moves it to its place. One
// that cannot be moved goes.
func createLinks(dir, target string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	link := filepath.Join(dir, fmt.Sprintf(".cnibox-%012x", rand.Uint64()>>16))
	for _, name := range names {
		if err := os.Symlink(target, link); err != nil {
			return err
		}
		if err := disk.Rename(link, filepath.Join(dir, name)); err != nil {
			return errors.Join(err, os.Remove(link))
		}
	}
	return nil
}
