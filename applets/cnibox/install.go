package cnibox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/launcher"
	"github.com/cnibox/cnibox/spec"
)

// executable is the running file: argv[0] may be a link or any text.
const executable = "/proc/self/exe"

// copyName is the name of the copy of this binary that install --copy creates.
const copyName = "cnibox"

// keptDir has the files of other programs that install --keep replaced.
const keptDir = ".cnibox-kept"

// An installation is one call of install.
type installation struct {
	dir                       string
	names                     []string
	create, copy, keep, leave bool
	path                      string // of dir where the plugins are run; empty: dir
}

// installCommand creates the files of all applets, or of the named ones, in a directory.
func installCommand(ctx context.Context, p applet.Process, args []string) int {
	i := installation{}
	args, err := parse(args, map[string]*bool{"--create": &i.create, "--copy": &i.copy, "--keep": &i.keep, "--leave": &i.leave}, &i.path)
	switch {
	case err != nil:
		return usage(p, "install: %s", err)
	case len(args) == 0:
		return usage(p, "install needs a directory")
	case i.keep && i.leave:
		return usage(p, "install: --keep is for what is replaced, and --leave replaces nothing of other programs")
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

// parse takes the flags before the first operand.
func parse(args []string, flags map[string]*bool, path *string) ([]string, error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, ok := strings.Cut(args[0], "=")
		args = args[1:]
		if name == "--path" && path != nil {
			if !ok && len(args) > 0 {
				value, args = args[0], args[1:]
			}
			if *path = filepath.Clean(value); !filepath.IsAbs(value) {
				return nil, fmt.Errorf("--path needs an absolute path, as --path /opt/cni/bin, not %q", value)
			}
			continue
		}
		if flags[name] == nil || ok {
			return nil, fmt.Errorf("there is no flag %s", name)
		}
		*flags[name] = true
	}
	return args, nil
}

// names returns the names of the applets.
func names(all applet.Table) (list []string) {
	for _, a := range all {
		list = append(list, a.Name)
	}
	return list
}

// realDir returns the absolute path of a directory without symbolic links.
func realDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// run creates, for each name, a file that starts this binary or a copy of it. It does so by rename, so
// that a name always leads to the old file or to the new one. A missing directory, which may be a
// typing error, is an error unless create is set. Directories and special files are refused before the
// first change. The text reports the changes.
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
	program, err := i.program(dir, binary)
	if err != nil {
		return "", err
	}
	line, err := launcher.Text(program)
	if err != nil {
		return "", err
	}
	unlock, err := lockDirectory(ctx, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	files, others, err := i.plan(dir, binary, line)
	if err != nil {
		return "", err
	}
	copied := i.copy && from != binary
	if copied && i.leave && slices.Contains(others, copyName) {
		return "", fmt.Errorf("%s is another program, and --leave leaves it: there is no place for the copy", binary)
	}
	t := transaction{dir: dir, keep: i.keep}
	if copied && slices.Contains(others, copyName) {
		err = t.stash(copyName)
	}
	if err == nil && copied {
		err = copyFile(from, binary)
	}
	for _, name := range files {
		if err == nil && slices.Contains(others, name) {
			err = t.stash(name)
		}
		if err == nil {
			err = t.write(name, line)
		}
	}
	if err == nil {
		err = t.commit()
	}
	if err != nil {
		return "", errors.Join(err, t.undo())
	}
	text = fmt.Sprintf("%s: %d names start %s; %d files created", dir, len(i.names), program, len(files))
	switch {
	case len(others) > 0 && i.leave:
		text = fmt.Sprintf("%s: %d of %d names start %s; %d files created; other programs stay: %s",
			dir, len(i.names)-len(others), len(i.names), program, len(files), strings.Join(others, " "))
	case len(others) > 0:
		text += ", in place of other programs: " + strings.Join(others, " ")
	}
	return text, nil
}

// program returns the path of the binary where the plugins are run.
//
// A container has the directory of its host as a mount, usually at another path, which the files must
// not name: no plugin would run.
func (i *installation) program(dir, binary string) (string, error) {
	if i.path != "" {
		if filepath.Dir(binary) != dir {
			return "", fmt.Errorf("--path is for a binary in %s, and this one is %s; --copy copies it", dir, binary)
		}
		return filepath.Join(i.path, filepath.Base(binary)), nil
	}
	var here, above unix.Stat_t
	if !i.copy || unix.Stat(dir, &here) != nil || unix.Stat(filepath.Dir(dir), &above) != nil || here.Dev == above.Dev {
		return binary, nil
	}
	return "", fmt.Errorf("%s is a mount, as in a container: add --path with its path where the plugins are run, as --path /opt/cni/bin", dir)
}

// plan returns the names whose files are missing, and those of names and the copy that have the
// program of another. It changes nothing.
func (i *installation) plan(dir, binary, line string) (files, others []string, err error) {
	if i.copy {
		st, err := os.Lstat(binary)
		if err == nil && st.IsDir() {
			return nil, nil, fmt.Errorf("%s is a directory, and stays; nothing was changed", binary)
		}
		if err == nil && !ours(binary, binary) && !product(binary) {
			others = append(others, copyName)
		}
	}
	for _, name := range i.names {
		path := filepath.Join(dir, name)
		if path == binary { // the binary itself, under an applet's name
			continue
		}
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			files = append(files, name)
			continue
		case err != nil:
			return nil, nil, err
		case !st.Mode().IsRegular() && st.Mode()&os.ModeSymlink == 0:
			return nil, nil, fmt.Errorf("%s is neither a file nor a link, and stays; nothing was changed", path)
		case st.Mode().IsRegular() && st.Mode().Perm() == launcher.Mode && sameText(path, line):
			continue
		}
		if !ours(path, binary) {
			if others = append(others, name); i.leave {
				continue
			}
		}
		files = append(files, name)
	}
	return files, others, nil
}

// sameText reports whether a launcher has this line.
func sameText(path, line string) bool {
	text, err := launcher.Text(launcher.Program(path))
	return err == nil && text == line
}

// target returns the program that a launcher or a link, as earlier releases made, leads to; empty:
// the path has something else.
func target(path string) string {
	if program := launcher.Program(path); program != "" {
		return program
	}
	to, err := os.Readlink(path)
	if err == nil && !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	return to
}

// ours reports whether a path is what install made for a binary, or for one of its name: that of
// another release, or that of a launcher for another mount.
func ours(path, binary string) bool {
	to := target(path)
	return to == binary || filepath.Base(to) == copyName && (launcher.Program(path) != "" || product(to))
}

// product reports whether a file is this program, of any release: it has the name of a function of it.
func product(path string) bool {
	f, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxProgram))
	return err == nil && bytes.Contains(text, []byte("cnibox/applets.Lookup"))
}

// openRegular opens a regular file; it does not wait for a pipe.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path), f.Close())
	}
	return f, nil
}

// maxProgram bounds the size of a file that is searched, in bytes. The program has less than a tenth.
const maxProgram = 128 << 20

// tempPrefix and 12 hex digits form the temporary name of a file.
const tempPrefix = ".cnibox-"

// temporary returns a new path for a file that is renamed later.
func temporary(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("%s%012x", tempPrefix, rand.Uint64()>>16))
}

// A transaction replaces names in a directory. Files of other programs come back if it fails.
type transaction struct {
	dir      string
	keep     bool
	created  []string // names that were missing
	stashed  []string
	ownsKept bool // it created the directory of what is kept
}

// stash hard-links the file of a name below [keptDir], under a name that is pending until commit.
func (t *transaction) stash(name string) error {
	if !t.keep {
		return nil
	}
	switch err := os.Mkdir(filepath.Join(t.dir, keptDir), 0o755); {
	case err == nil:
		t.ownsKept = true
	case !errors.Is(err, os.ErrExist):
		return err
	}
	pending := t.pending(name)
	err := disk.Remove(pending)
	if err == nil {
		err = disk.Change("link "+name, func() error { return os.Link(filepath.Join(t.dir, name), pending) })
	}
	if err == nil {
		t.stashed = append(t.stashed, name)
	}
	return err
}

func (t *transaction) pending(name string) string { return filepath.Join(t.dir, keptDir, "."+name) }

// write replaces the file of a name by rename.
func (t *transaction) write(name, line string) error {
	path, temp := filepath.Join(t.dir, name), temporary(t.dir)
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		t.created = append(t.created, name)
	}
	if err = disk.Change("write "+name, func() error { return writeFile(temp, strings.NewReader(line)) }); err != nil {
		return err
	}
	if err := disk.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// commit gives what is kept its names. An earlier file of a name is replaced.
func (t *transaction) commit() error {
	for _, name := range t.stashed {
		if err := disk.Rename(t.pending(name), filepath.Join(t.dir, keptDir, name)); err != nil {
			return err
		}
	}
	return nil
}

// undo deletes what was created, and puts back what was replaced.
func (t *transaction) undo() (err error) {
	for _, name := range t.created {
		err = errors.Join(err, disk.Remove(filepath.Join(t.dir, name)))
	}
	for _, name := range t.stashed {
		from := t.pending(name)
		if _, lost := os.Lstat(from); lost != nil { // committed
			from = filepath.Join(t.dir, keptDir, name)
		}
		// The rename of one of two names of a file does nothing.
		err = errors.Join(err, os.Rename(from, filepath.Join(t.dir, name)), disk.Remove(from))
	}
	if t.ownsKept {
		err = errors.Join(err, disk.Remove(filepath.Join(t.dir, keptDir)))
	}
	return err
}

// copyFile copies a program by rename: a process that runs the old file is not affected.
func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	temp := temporary(filepath.Dir(to))
	if err := disk.Change("write "+filepath.Base(to), func() error { return writeFile(temp, src) }); err != nil {
		return err
	}
	if err = disk.Rename(temp, to); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// writeFile writes a new program to disk, and deletes it if it cannot.
func writeFile(path string, content io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, launcher.Mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Chmod(launcher.Mode), f.Sync(), f.Close()); err != nil { // despite the umask
		return errors.Join(err, os.Remove(path))
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

// removeTemporary deletes temporary files, and links of earlier releases.
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

// uninstall replaces what starts this binary, or one in this directory, by the file that was kept for
// its name. It deletes the other files that do, the binary in this directory, and the kept files. A
// file that has replaced one of ours since then stays.
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
	mine := func(path string) bool {
		to := target(path)
		if to == binary || to == clone {
			return true
		}
		_, err := os.Stat(to) // a launcher may have the path of another mount
		return launcher.Program(path) != "" && filepath.Base(to) == copyName && errors.Is(err, os.ErrNotExist)
	}
	var restored, deleted []string
	names = slices.DeleteFunc(names, func(name string) bool { return name == copyName })
	for _, name := range append(names, copyName) { // the binary last: links lead to it
		path := filepath.Join(dir, name)
		st, err := os.Lstat(path)
		if err != nil || !mine(path) && (path != clone || !st.Mode().IsRegular() || !product(path)) {
			continue
		}
		err = os.Rename(filepath.Join(dir, keptDir, name), path)
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
	if err := os.RemoveAll(filepath.Join(dir, keptDir)); err != nil {
		return "", err
	}
	text = fmt.Sprintf("%s: %d names deleted", dir, len(deleted))
	if len(restored) > 0 {
		text += ", and the older files put back: " + strings.Join(restored, " ")
	}
	return text, nil
}
