package chain

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/boot"
	"cnibox/spec"
)

// A Broken is a file in the place of an entry that cannot be read, as after a power
// cut, or a symbolic link. Only its name tells which attachment it was about, and not
// for certain: names may have dashes.
type Broken struct {
	name, file string
	err        error
	aside      bool // an earlier GC has moved it
}

// possible returns the attachments of a network whose entry may have the file's name.
// The error is of a name so long that it has only a hash in it.
func (b *Broken) possible(network string) (all []spec.Attachment, err error) {
	if strings.HasPrefix(b.name, hashed+spec.NetworkKey(network)) {
		return nil, fmt.Errorf("%w, and its name does not tell whose it was: nothing is deleted; delete the file if its container is gone, or name with --valid what is to stay", b.err)
	}
	whole, _ := strings.CutPrefix(b.name, network+"-")
	short := whole[:max(0, strings.LastIndexByte(whole, '~'))]
	for _, rest := range []string{whole, short} {
		for i := range len(rest) {
			a := spec.Attachment{Network: network, ContainerID: rest[:i], IfName: rest[i+1:]}
			if rest[i] == '-' && checkNames(a) == nil && slices.Contains(fileNamesOf(a), b.name) {
				all = append(all, a)
			}
		}
	}
	return all, nil
}

// asideDir is where GC moves what cannot be read: out of the way of other tools, for
// people to look at. It is one of this boot, which no attachment outlives: GC deletes
// those of other boots, so that they cannot pile up.
func (c *Cache) asideDir() string {
	return filepath.Join(c.Dir, "broken", cmp.Or(boot.ID(), "boot"))
}

// aside returns the files that were moved on this boot.
// None are dropped before a DEL or ADD of their attachment: it may be alive.
func (c *Cache) aside() (all []Broken, err error) {
	names, err := fileNames(c.asideDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) { // mostly there is none
		return nil, cacheError(err)
	}
	for _, name := range names {
		file := filepath.Join(c.asideDir(), name)
		all = append(all, Broken{name: name, file: file, err: fmt.Errorf("%s: %w", file, errBroken), aside: true})
	}
	return all, nil
}

// dropAside deletes what was moved of an attachment.
// Its next entry, or its end, tells all that anybody has to know.
func (c *Cache) dropAside(a spec.Attachment) error {
	var errs []error
	for _, name := range fileNamesOf(a) {
		errs = append(errs, remove(filepath.Join(c.asideDir(), name)))
	}
	return errors.Join(errs...)
}

// dropOldAside deletes what was moved on other boots. Links are not followed: what they
// lead to is none of ours.
func (c *Cache) dropOldAside() error {
	var errs []error
	for _, dir := range within(filepath.Dir(c.asideDir())) {
		if dir == c.asideDir() {
			continue
		}
		for _, file := range within(dir) {
			errs = append(errs, remove(file))
		}
		errs = append(errs, remove(dir))
	}
	return errors.Join(errs...)
}

// within returns the paths of what is in a folder; a link to one has nothing in it.
func within(dir string) (paths []string) {
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return nil
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}

// setAside moves a file that has not been touched for a minute, since libcni writes in
// place and what is broken now may be half of an entry, and returns where it is then,
// or, in a dry run, would be. Empty: it stays, also where results is
// another file system.
func (c *Cache) setAside(b *Broken, dryRun bool) (to string, err error) {
	if b.aside || !old(b.file) {
		return "", nil
	}
	to = filepath.Join(c.asideDir(), b.name)
	if dryRun {
		return to, nil
	}
	if err = os.MkdirAll(c.asideDir(), 0o700); err == nil {
		err = os.Rename(b.file, to)
	}
	switch {
	case err == nil:
		return to, nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, os.ErrNotExist):
		return "", nil
	}
	return "", cacheError(err)
}

// unreadable returns the attachments of the network that are kept since nobody can read
// what they are. An error is one before anything was done.
func unreadable(network string, broken []Broken) (kept []spec.Attachment, err error) {
	for _, b := range broken {
		maybe, err := b.possible(network)
		if err != nil {
			return nil, err
		}
		kept = append(kept, maybe...)
	}
	return kept, nil
}

// tend tells of each file that cannot be read, moves those in the way, and
// deletes what killed processes and other boots have left.
func (r *Runner) tend(network string, broken []Broken, s Sweep) error {
	var errs []error
	for _, b := range broken {
		to, err := r.Cache.setAside(&b, s.DryRun)
		errs = append(errs, err)
		text := b.err.Error()
		switch {
		case to != "" && s.DryRun:
			text += ": would be set aside as " + to
		case to != "":
			text += ": set aside as " + to
		}
		maybe, _ := b.possible(network)
		if s.Live && len(maybe) > 0 {
			text += fmt.Sprintf("; its attachment is kept (%v): run del for it once its container is gone", maybe)
		} else if b.aside {
			continue // of another network
		}
		r.Warn("cache: %s", text)
	}
	if !s.DryRun {
		errs = append(errs, r.Cache.dropTemporary(), r.Cache.dropOldAside())
	}
	return errors.Join(errs...)
}
