package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/spec"
)

// A Cache stores the arguments and the result of each ADD, with the directory, names and schema of
// libcni, so that this runtime and others can continue each other's attachments.
//
// Nothing is synced to disk: no network namespace outlives a power cut, and entries have the ID of
// their boot. On the flash of small boards a sync takes longer than a whole ADD.
//
// Begin records that an ADD has begun, Finish records its result, and Remove deletes both. A file
// that is not an entry counts as absent; ADD of its attachment replaces it, and DEL deletes it.
// Errors of the disk have code 5.
type Cache struct {
	Dir string // contains results/; libcni's is /var/lib/cni

	// Creating is called before the directory is created; nil: it is not called.
	Creating func()

	// LockTimeout is how long a verb waits for other verbs of its container, and for a GC of its
	// network; 0: 2 min, longer than the timeout of one plugin.
	LockTimeout time.Duration
}

// The prefixes of derived container IDs: cnitool (and this runtime) derive them from the path of a
// namespace, and `cni-exec run` generates them.
const (
	CnitoolPrefix = "cnitool-"
	RunPrefix     = "cnirun-"
)

// scratchPrefix precedes the attachment's key in the name of an entry's temporary file.
const scratchPrefix = ".cnibox-"

// results returns the directory of the entries. It may be a mount point.
func (c *Cache) results() string { return filepath.Join(c.Dir, "results") }

// fileNames returns the possible file names of an attachment's entry. The first is libcni's,
// NETWORK-CONTAINER-IFNAME. Network a with container b-c and network a-b with container c have the
// same name: the second name, with the attachment's key, is used if the first one has the other's
// entry. If the name is too long, only the key is used.
func fileNames(a spec.Attachment) []string {
	plain := a.Network + "-" + a.ContainerID + "-" + a.IfName
	keyed := plain + "~" + a.Key()
	if len(keyed) > unix.NAME_MAX {
		keyed = keyedPrefix + a.Key() + "-" + a.IfName
	}
	if len(plain) > unix.NAME_MAX {
		return []string{keyed}
	}
	return []string{plain, keyed}
}

// keyedPrefix begins the names of files without room for the attachment's names.
const keyedPrefix = "cnibox-"

// checkNames returns an error for names that must not become part of a path. libcni checks
// them at ADD only.
func checkNames(a spec.Attachment) error {
	if err := spec.CheckNetworkName(a.Network); err != nil {
		return err
	}
	return spec.Call{ContainerID: a.ContainerID, IfName: a.IfName}.CheckNames()
}

// cacheError gives an error of the disk code 5; nil stays nil.
func cacheError(err error) error {
	if err == nil {
		return nil
	}
	return spec.Errorf(spec.CodeIO, "cache: %w", err)
}

// Lookup returns the entry of an attachment. The error is os.ErrNotExist if there is none, or it is
// broken; after any other error, such as a missing permission, the attachment may exist.
func (c *Cache) Lookup(a spec.Attachment) (*Entry, error) {
	if err := checkNames(a); err != nil { // they become a path
		return nil, err
	}
	for _, name := range fileNames(a) {
		e, err := c.read(name)
		if err == nil && e.Attachment() == a {
			return e, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errBroken) {
			return nil, cacheError(err)
		}
	}
	return nil, fmt.Errorf("cache entry of %s: %w", a, os.ErrNotExist)
}

// errBroken is the error for a file that is not a cache entry.
var errBroken = errors.New("not a cache entry")

// read reads one file. The names in an entry are checked like those of a caller, since a DEL makes
// paths of them, and must match the file's name.
func (c *Cache) read(name string) (*Entry, error) {
	b, err := c.content(name)
	if err != nil {
		return nil, err
	}
	return c.decode(name, b)
}

// content returns the bytes of one file.
func (c *Cache) content(name string) ([]byte, error) {
	b, err := disk.Read(filepath.Join(c.results(), name), unix.O_NOFOLLOW, maxEntry)
	var call *os.PathError
	switch {
	case errors.Is(err, unix.ELOOP): // from O_NOFOLLOW
		return nil, fmt.Errorf("%s: %w: a symbolic link", filepath.Join(c.results(), name), errBroken)
	case errors.As(err, &call) && !errors.Is(err, unix.ENXIO): // ENXIO: a socket
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	return b, nil
}

// decode decodes the content for read.
func (c *Cache) decode(name string, b []byte) (*Entry, error) {
	file := filepath.Join(c.results(), name)
	e := &Entry{file: file}
	if err := json.Unmarshal(b, e); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, errBroken, spec.Explain(b, e, err))
	}
	if e.Kind != kindCache && e.Kind != kindIntent {
		return nil, fmt.Errorf("%s: %w: kind %q", file, errBroken, e.Kind)
	}
	if err := checkNames(e.Attachment()); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, errBroken, err)
	}
	if !slices.Contains(fileNames(e.Attachment()), name) {
		return nil, fmt.Errorf("%s: %w: it is about %s", file, errBroken, e.Attachment())
	}
	return e, nil
}

// Begin writes the intent of an ADD, which replaces an older entry of the attachment. The caller
// holds the container's lock.
//
// It is written before the first plugin runs, so that a process killed at any point of an ADD
// leaves a record of it. It does not replace an entry of another attachment that another tool wrote
// under the same name.
func (c *Cache) Begin(e *Entry) error {
	a := e.Attachment()
	names := fileNames(a)
	name, older := names[0], ""
	for _, n := range names {
		stored, err := c.read(n)
		switch {
		case err != nil:
		case stored.Attachment() == a:
			older = n
		case n == name:
			name = names[1] // keyed names are of one attachment
		}
	}
	e.Kind, e.file = kindIntent, filepath.Join(c.results(), name)
	if err := c.write(e); err != nil || older == "" || older == name {
		return err
	}
	return cacheError(disk.Remove(filepath.Join(c.results(), older)))
}

// Finish replaces the intent by the result. If it fails, the caller undoes the ADD, since DEL and
// CHECK need the result.
func (c *Cache) Finish(e *Entry, result json.RawMessage) error {
	e.Kind, e.Result, e.There = kindCache, result, false
	return c.write(e)
}

// write replaces the entry atomically, so that no reader sees a part of it. libcni truncates and
// writes: a crash in between leaves an empty file, on which its CHECK and GC fail (cni#1055).
func (c *Cache) write(e *Entry) error {
	doc, err := json.Marshal(e)
	if err != nil {
		return cacheError(err)
	}
	return cacheError(disk.Replace(e.file, c.scratch(e.Attachment()), doc, 0))
}

// scratch returns the temporary file for the entry of an attachment. The writer holds the
// attachment's lock, so an existing file is from a killed process.
func (c *Cache) scratch(a spec.Attachment) string {
	return filepath.Join(c.results(), scratchPrefix+a.Key())
}

// Remove deletes the stored entry of an attachment, even a broken one. It is not an error if there
// is none. A DEL calls it last, since the entry is needed again after a failure.
func (c *Cache) Remove(a spec.Attachment) error {
	return c.remove(a, nil, anyName)
}

// remove is Remove; exists reports whether a file with a name may exist. e is the entry as read
// under the lock; nil: remove reads the files.
func (c *Cache) remove(a spec.Attachment, e *Entry, exists func(name string) bool) error {
	var errs []error
	if exists(filepath.Base(c.scratch(a))) {
		errs = append(errs, cacheError(disk.Remove(c.scratch(a))))
	}
	for _, name := range fileNames(a) {
		if !exists(name) {
			continue
		}
		file, err := filepath.Join(c.results(), name), error(nil)
		stored := e
		if e == nil || e.file != file {
			stored, err = c.read(name)
		}
		if err == nil && stored.Attachment() == a || errors.Is(err, errBroken) {
			err = disk.Remove(file)
		}
		errs = append(errs, cacheError(ignore(err, os.ErrNotExist)))
	}
	return errors.Join(errs...)
}

// listed returns a function that reports whether the results directory has a file with a name. If
// the directory cannot be read, the function always returns true.
func (c *Cache) listed() func(name string) bool {
	all, err := disk.List(c.results())
	if err != nil {
		return anyName
	}
	names := make(map[string]bool, len(all))
	for _, f := range all {
		names[f.Name()] = true
	}
	return func(name string) bool { return names[name] }
}

// anyName is [Cache.listed] for a directory that is not read.
func anyName(string) bool { return true }

// List returns all entries in the order of their file names, and the unreadable files. A missing
// directory has none, and a file that is deleted meanwhile is omitted. One that libcni is rewriting
// is broken, since it truncates and writes: the next call reads it.
func (c *Cache) List() (entries []*Entry, broken []Broken, err error) {
	return c.Search(func([]byte) bool { return true })
}

// Entries returns the entries of the cache, and warns about broken files, which it returns too. It may
// return entries together with an error about unreadable files, as without permission; these may be
// entries of attachments that are alive.
func (r *Runner) Entries() (entries []*Entry, torn []error, err error) {
	entries, broken, err := r.Cache.List()
	if err != nil {
		return nil, nil, err
	}
	var unread []error
	for _, b := range broken {
		switch {
		case !errors.Is(b.err, errBroken):
			unread = append(unread, b.err)
		default:
			r.Warn("cache: %v", b.err)
			torn = append(torn, b.err)
		}
	}
	if len(unread) > 0 {
		err = spec.Errorf(spec.CodeIO, "cache: %d of %d entries cannot be read, the first: %w", len(unread), len(entries)+len(broken), unread[0])
	}
	return entries, torn, err
}

// Search is [Cache.List] for the entries whose text matches. Other entries are not decoded, which
// takes most of the time, and are never broken.
func (c *Cache) Search(match func(text []byte) bool) (entries []*Entry, broken []Broken, err error) {
	names, err := c.names()
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, cacheError(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue // a scratch file: no network name begins with a dot
		}
		var e *Entry
		b, err := c.content(name)
		if err == nil && !match(b) {
			continue
		}
		if err == nil {
			e, err = c.decode(name, b)
		}
		switch {
		case err == nil:
			entries = append(entries, e)
		case !errors.Is(err, os.ErrNotExist):
			broken = append(broken, Broken{name, err})
		}
	}
	slices.SortFunc(entries, func(a, b *Entry) int { return strings.Compare(a.file, b.file) })
	return entries, broken, nil
}

// names returns the names of possible entries, including directories, which are broken entries. A
// directory without the dashes of an entry, such as lost+found, is not an entry.
func (c *Cache) names() (names []string, err error) {
	all, err := disk.List(c.results())
	for _, f := range all {
		if !f.IsDir() || strings.Contains(f.Name(), "-") {
			names = append(names, f.Name())
		}
	}
	return names, err
}

// A Broken is an unreadable file among the entries, as after a power cut, or one that is not a
// regular file. Its attachment is unknown.
type Broken struct {
	name string
	err  error
}

// Name returns the name of the file in the directory results of the cache.
func (b *Broken) Name() string { return b.name }

// Err returns the error about the file, with its path.
func (b *Broken) Err() error { return b.err }

// Of reports whether the file has the name of an attachment's entry.
func (b *Broken) Of(a spec.Attachment) bool { return slices.Contains(fileNames(a), b.name) }

// mayBeOf reports whether the file may have been an entry of a network.
func (b *Broken) mayBeOf(network string) bool {
	return strings.HasPrefix(b.name, network+"-") || strings.HasPrefix(b.name, keyedPrefix+spec.NetworkKey(network))
}

// removeScratch deletes the scratch files of killed processes.
func (c *Cache) removeScratch() error {
	names, _ := filesIn(c.results()) // List has reported an unreadable directory
	var errs []error
	for _, name := range names {
		if !strings.HasPrefix(name, scratchPrefix) {
			continue
		}
		file := filepath.Join(c.results(), name)
		if info, err := os.Lstat(file); err == nil && time.Since(info.ModTime()) >= longestWrite {
			errs = append(errs, cacheError(disk.Remove(file)))
		}
	}
	return errors.Join(errs...)
}

// longestWrite is longer than any writer takes. If the clock was set back, a file stays until a later call.
const longestWrite = time.Minute
