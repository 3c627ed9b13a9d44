package cnibox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/internal/disk"
	"cnibox/internal/flock"
	"cnibox/spec"
)

// executable is the running file, as argv[0] may be a link or any text.
const executable = "/proc/self/exe"

// installCommand creates the links of all applets, or of those named exactly, in a directory.
func installCommand(ctx context.Context, p applet.Process, args []string) int {
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
	text, err := install(ctx, args[0], names, create)
	if err != nil {
		p.Complain("cnibox", "install: %s", err)
		return 1
	}
	fmt.Fprintf(p.Stdout, "cnibox: %s\n", spec.Printable(text))
	return 0
}

// install creates a relative link to this binary in dir for each name, by rename, so that a name
// leads to the old file or to the new one at any time. A missing dir is an error, which may be a typing
// error, unless create is set. Directories and special files are refused before the first change.
//
// The links are relative, so that they are valid where dir and the binary are mounted at another
// path. The text reports what was done.
func install(ctx context.Context, dir string, names []string, create bool) (text string, err error) {
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
	// links are relative to the real path of the directory
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
	links, replaced, err := plan(dir, binary, target, names)
	if err != nil {
		return "", err
	}
	if err := createLinks(ctx, dir, target, links); err != nil {
		return "", err
	}
	text = fmt.Sprintf("%s: all %d names lead to %s; %d links created", dir, len(names), target, len(links))
	if len(replaced) > 0 {
		text += ", in place of older files: " + strings.Join(replaced, " ")
	}
	return text, nil
}

// plan returns the names whose links are to be created, and those of them that are another file or
// link now. It changes nothing.
func plan(dir, binary, target string, names []string) (links, replaced []string, err error) {
	for _, name := range names {
		path := filepath.Join(dir, name)
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			links = append(links, name)
			continue
		case err != nil:
			return nil, nil, err
		case path == binary: // the binary itself, under an applet's name
			continue
		case st.Mode()&os.ModeSymlink != 0:
			if now, err := os.Readlink(path); err == nil && now == target {
				continue
			}
		case !st.Mode().IsRegular():
			return nil, nil, fmt.Errorf("%s is neither a file nor a link, and stays; nothing was changed", path)
		}
		links, replaced = append(links, name), append(replaced, name)
	}
	return links, replaced, nil
}

// tempPrefix and 12 hex digits are the temporary name of a link.
const tempPrefix = ".cnibox-"

// createLinks creates each link under a temporary name and renames it. One that cannot be renamed is
// deleted, and so are those that were left by an install that was killed.
func createLinks(ctx context.Context, dir, target string, names []string) error {
	unlock, err := lockDirectory(ctx, dir)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil: // a file system without locks keeps what was left
		defer unlock()
		if err := removeTemporary(dir); err != nil {
			return err
		}
	}
	link := filepath.Join(dir, fmt.Sprintf("%s%012x", tempPrefix, rand.Uint64()>>16))
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

// lockDirectory excludes other calls of install, whose temporary links must stay.
func lockDirectory(ctx context.Context, dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return flock.Wait(ctx, fd, unix.LOCK_EX)
}

// removeTemporary deletes temporary links.
func removeTemporary(dir string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if err == nil && f.Type() == os.ModeSymlink && spec.Hashed(f.Name(), tempPrefix, 12) {
			err = disk.Remove(filepath.Join(dir, f.Name()))
		}
	}
	return err
}
