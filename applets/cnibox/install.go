package cnibox

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// executable is the running file: argv[0] may be a link or any text.
const executable = "/proc/self/exe"

// copyName is the name of the copy of this binary that install --copy creates.
const copyName = "cnibox"

// keptDir, below the directory of the links, has the files that install --keep replaced.
const keptDir = ".cnibox-kept"

// An installation is one call of install.
type installation struct {
	dir                string
	names              []string
	create, copy, keep bool
}

// installCommand creates the links of all applets, or of the named ones, in a directory.
func installCommand(ctx context.Context, p applet.Process, args []string) int {
	i := installation{}
	flags := map[string]*bool{"--create": &i.create, "--copy": &i.copy, "--keep": &i.keep}
	for len(args) > 0 && flags[args[0]] != nil {
		*flags[args[0]] = true
		args = args[1:]
	}
	switch {
	case len(args) == 0:
		return usage(p, "install needs a directory")
	case strings.HasPrefix(args[0], "-"):
		return usage(p, "install has no flag %s", args[0])
	}
	i.dir, i.names = args[0], names(p.Applets)
	if len(args) > 1 {
		i.names = args[1:]
	}
	for _, name := range i.names {
		if a, ok := p.Applets.Lookup(name); !ok || a.Name != name {
			return usage(p, "no applet is named %q%s", name, suggest(p.Applets, name))
		}
	}
	text, err := i.run(ctx)
	if err != nil {
		p.Complain("cnibox", "install: %s", err)
		return 1
	}
	fmt.Fprintf(p.Stdout, "cnibox: %s\n", spec.Printable(text))
	return 0
}

// names returns the names of the applets.
func names(all applet.Table) (list []string) {
	for _, a := range all {
		list = append(list, a.Name)
	}
	return list
}

// realDir returns the absolute path of a directory without symbolic links, to which relative links
// in it refer.
func realDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// run creates, for each name, a relative link to this binary or to a copy of it. It does so by
// rename, so that a name always leads to the old file or to the new one. A missing directory, which
// may be a typing error, is an error unless create is set. Directories and special files are
// refused before the first change.
//
// The links are relative, so that they stay valid where directory and binary are mounted at another
// path. The text reports the changes.
func (i *installation) run(ctx context.Context) (text string, err error) {
	binary, err := os.Readlink(executable)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("this binary has no path any more: %w", err)
	}
	if i.create {
		err = os.MkdirAll(i.dir, 0o755)
	} else if _, err = os.Stat(i.dir); errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%s: no such directory; --create creates it", i.dir)
	}
	if err != nil {
		return "", err
	}
	dir, err := realDir(i.dir)
	if err != nil {
		return "", err
	}
	from := binary
	if i.copy {
		binary = filepath.Join(dir, copyName)
	}
	target, err := filepath.Rel(dir, binary)
	if err != nil {
		return "", err
	}
	links, replaced, err := plan(dir, binary, target, i.names)
	if err != nil {
		return "", err
	}
	unlock, err := lockDirectory(ctx, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if i.keep {
		err = keep(dir, binary, replaced)
	}
	if err == nil && i.copy && from != binary {
		err = copyFile(from, binary)
	}
	if err == nil {
		err = createLinks(dir, target, links)
	}
	if err != nil {
		return "", err
	}
	text = fmt.Sprintf("%s: all %d names lead to %s; %d links created", dir, len(i.names), target, len(links))
	if len(replaced) > 0 {
		text += ", in place of older files: " + strings.Join(replaced, " ")
	}
	return text, nil
}

// plan returns the names whose links are missing, and those of them that another file or link has
// now. It changes nothing.
func plan(dir, binary, target string, names []string) (links, replaced []string, err error) {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if path == binary { // the binary itself, under an applet's name
			continue
		}
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			links = append(links, name)
			continue
		case err != nil:
			return nil, nil, err
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

// tempPrefix and 12 hex digits form the temporary name of a link.
const tempPrefix = ".cnibox-"

// temporary returns a new path for a file that is renamed later.
func temporary(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("%s%012x", tempPrefix, rand.Uint64()>>16))
}

// createLinks creates each link under a temporary name and renames it. It deletes a link that
// cannot be renamed.
func createLinks(dir, target string, names []string) error {
	link := temporary(dir)
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

// keep hard-links the files that will be replaced below [keptDir], except links to the binary.
func keep(dir, binary string, replaced []string) error {
	for _, name := range replaced {
		if ours(filepath.Join(dir, name), binary) {
			continue
		}
		if err := os.MkdirAll(filepath.Join(dir, keptDir), 0o755); err != nil {
			return err
		}
		kept := filepath.Join(dir, keptDir, name)
		if err := errors.Join(disk.Remove(kept), os.Link(filepath.Join(dir, name), kept)); err != nil {
			return err
		}
	}
	return nil
}

// ours reports whether a path is a link that install made to a binary.
func ours(path, binary string) bool {
	target, err := os.Readlink(path)
	return err == nil && filepath.Join(filepath.Dir(path), target) == binary
}

// copyFile copies a program by rename: a process that runs the old file is not affected.
func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	temp := temporary(filepath.Dir(to))
	dst, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	err = errors.Join(err, dst.Chmod(0o755), dst.Sync(), dst.Close()) // despite the umask
	if err == nil {
		err = disk.Rename(temp, to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// lockDirectory excludes other calls, and deletes temporary files of a killed call. If the
// directory cannot be locked, other calls are not excluded, and these files stay, since they may be
// another call's.
func lockDirectory(ctx context.Context, dir string) (unlock func(), err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		unlock, err = flock.Wait(ctx, fd, unix.LOCK_EX)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return func() {}, nil
	}
	if err := removeTemporary(dir); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// removeTemporary deletes temporary links and copies.
func removeTemporary(dir string) error {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if err == nil && (f.Type() == os.ModeSymlink || f.Type().IsRegular()) && spec.Hashed(f.Name(), tempPrefix, 12) {
			err = disk.Remove(filepath.Join(dir, f.Name()))
		}
	}
	return err
}

// uninstallCommand removes what install created in a directory, and restores what it kept.
func uninstallCommand(ctx context.Context, p applet.Process, args []string) int {
	if len(args) != 1 || strings.HasPrefix(args[0], "-") {
		return usage(p, "uninstall needs a directory")
	}
	text, err := uninstall(ctx, args[0], names(p.Applets))
	if err != nil {
		p.Complain("cnibox", "uninstall: %s", err)
		return 1
	}
	fmt.Fprintf(p.Stdout, "cnibox: %s\n", spec.Printable(text))
	return 0
}

// uninstall replaces each link by the file that was kept for its name. It deletes the other links,
// the binary in this directory, and the kept files. A file that has replaced a link since then
// stays.
func uninstall(ctx context.Context, dir string, names []string) (text string, err error) {
	binary, err := os.Readlink(executable)
	if err != nil {
		return "", err
	}
	if dir, err = realDir(dir); err != nil {
		return "", err
	}
	unlock, err := lockDirectory(ctx, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	clone := filepath.Join(dir, copyName)
	var restored, deleted []string
	for _, name := range names {
		path := filepath.Join(dir, name)
		if path == clone || !ours(path, binary) && !ours(path, clone) {
			continue
		}
		err := os.Rename(filepath.Join(dir, keptDir, name), path)
		switch {
		case err == nil:
			restored = append(restored, name)
		case errors.Is(err, os.ErrNotExist):
			if err := disk.Remove(path); err != nil {
				return "", err
			}
			deleted = append(deleted, name)
		default:
			return "", err
		}
	}
	if st, err := os.Lstat(clone); err == nil && (st.Mode().IsRegular() || ours(clone, binary)) {
		if err := disk.Remove(clone); err != nil {
			return "", err
		}
		deleted = append(deleted, copyName)
	}
	if err := os.RemoveAll(filepath.Join(dir, keptDir)); err != nil {
		return "", err
	}
	text = fmt.Sprintf("%s: %d names deleted", dir, len(deleted))
	if len(restored) > 0 {
		text += ", and the older files put back: " + strings.Join(restored, " ")
	}
	return text, nil
}
