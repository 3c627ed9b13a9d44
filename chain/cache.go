package chain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
	"cnibox/internal/fault"
	"cnibox/internal/json"
	"cnibox/spec"
)

// DefaultCacheDir is libcni's.
const DefaultCacheDir = "/var/lib/cni"

// A Cache keeps what ADD was told and answered, in the folder, names and schema
// of libcni, so that other runtimes can finish what this one began and the
// other way round.
//
// Nothing is synced to disk: no network namespace outlives a power cut, entries
// carry the boot they belong to, and a torn one is set aside. On the flash of
// small boards a sync takes longer than a whole ADD.
//
// Begin writes that an ADD has begun, Finish what came of it, and Remove forgets both.
type Cache struct {
	Dir string // holds results/; see DefaultCacheDir

	// LockTimeout is how long a verb waits for others of its container, and for a GC of its
	// network; 0: 2 min, longer than one plugin may take.
	LockTimeout time.Duration
}

const (
	// The kinds of entries. libcni takes a file of another kind for a bare result, which
	// an intent does not have.
	kindCache  = "cniCacheV1"     // libcni's
	kindIntent = "cniboxIntentV1" // an ADD has begun and not ended; other tools skip it
)

// An Entry is a file of the cache. The order of its members is libcni's; those
// behind result are ours, which others ignore.
//
// File names do not tell where one name ends and the next begins, so the names in the
// entry count. Readers of other makers (CRI-O, Multus) look at containerId, ifName,
// networkName and result.
type Entry struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"` // the list, drop-in plugins inlined
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns,omitempty"`
	Args           [][2]string                `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`
	BootID         string                     `json:"cniboxBootID,omitempty"` // of the kernel that ADD ran on
	NetNSID        string                     `json:"cniboxNetNS,omitempty"`  // device:inode of NetNS

	file string // where it stands
}

// Attachment returns the three names that the entry is about.
func (e *Entry) Attachment() spec.Attachment {
	return spec.Attachment{Network: e.NetworkName, ContainerID: e.ContainerID, IfName: e.IfName}
}

// maxEntry is the largest entry that is read, in bytes: a configuration in base64 and
// the largest result of a plugin, with room for arguments.
const maxEntry = 2*spec.MaxConf + maxStdout

// Interrupted reports whether its ADD never came to an end.
// Its process was killed, or the DEL that followed its failure failed as well.
func (e *Entry) Interrupted() bool { return e.Kind == kindIntent }

// Lookup returns the entry of an attachment, or os.ErrNotExist. An entry that
// cannot be read is as good as none.
// Other errors, as no permission, are told: "not attached" would be a guess then.
func (c *Cache) Lookup(a spec.Attachment) (*Entry, error) {
	if err := checkNames(a); err != nil { // they become a path
		return nil, err
	}
	for _, name := range fileNamesOf(a) {
		e, err := c.read(name, a)
		if err == nil && e.Attachment() == a {
			return e, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errBroken) {
			return nil, cacheError(err)
		}
	}
	return nil, fmt.Errorf("cache entry of %s: %w", a, os.ErrNotExist)
}

// cacheError says where an error of the disk was, with code 5; nil stays nil.
func cacheError(err error) error {
	if err == nil {
		return nil
	}
	return spec.Errorf(spec.CodeIO, "cache: %w", err)
}

// errBroken marks files that are no cache entry, whoever reads them.
var errBroken = errors.New("not a cache entry")

// read reads one file; a is who a file of the oldest format, which has only the
// result in it, is taken to be about.
//
// Nothing is believed of a file but what its names allow: they are checked like those
// of a caller, since a DEL makes paths of them.
func (c *Cache) read(name string, a spec.Attachment) (*Entry, error) {
	file := filepath.Join(c.results(), name)
	b, err := disk.Read(file, unix.O_NOFOLLOW, maxEntry)
	var call *os.PathError
	switch {
	case errors.As(err, &call) && call.Err != unix.ELOOP && call.Err != unix.ENXIO: // a link, a socket
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errBroken, err)
	}
	e := &Entry{file: file}
	if err := json.Unmarshal(b, e); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, errBroken, spec.Explain(b, e, err))
	}
	// The format of libcni 0.7: nothing but the result, and the names in the file name.
	if e.Kind == "" && e.NetworkName == "" && a.Network != "" {
		*e = Entry{Kind: kindCache, ContainerID: a.ContainerID, IfName: a.IfName, NetworkName: a.Network, Result: b, file: file}
	}
	if e.Kind != kindCache && e.Kind != kindIntent {
		return nil, fmt.Errorf("%s: %w: kind %q", file, errBroken, e.Kind)
	}
	if err := checkNames(e.Attachment()); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, errBroken, err)
	}
	if !slices.Contains(fileNamesOf(e.Attachment()), name) {
		return nil, fmt.Errorf("%s: %w: it is about %s", file, errBroken, e.Attachment())
	}
	return e, nil
}

// results is the folder of the entries.
func (c *Cache) results() string { return filepath.Join(c.Dir, "results") }

// hashed begins the names of files whose attachment's own would be too long.
const hashed = "cnibox-"

// fileNamesOf returns where an attachment's entry may stand: under libcni's
// name, or, since network a-b with container c and network a with container b-c
// share that, under one with the attachment's key. A name too long for a
// file is left out.
//
// All tools find the first; the second is ours, and only when it must be.
func fileNamesOf(a spec.Attachment) []string {
	name := a.Network + "-" + a.ContainerID + "-" + a.IfName
	const longest = 255 // NAME_MAX
	key := hashed + a.Key() + "-" + a.IfName
	if len(name) > longest {
		return []string{key}
	}
	if long := name + "~" + a.Key(); len(long) <= longest {
		key = long
	}
	return []string{name, key}
}

// checkNames refuses names that must not become part of a path.
// libcni checks them at ADD alone, and makes paths of those of a DEL.
func checkNames(a spec.Attachment) error {
	if err := spec.CheckNetworkName(a.Network); err != nil {
		return err
	}
	return spec.Call{ContainerID: a.ContainerID, IfName: a.IfName}.CheckNames()
}

// Begin writes the intent of an ADD. It takes the first name that nobody else
// has; its own older entry is replaced.
//
// It is written before the first plugin runs, so that a process killed at any point
// of an ADD leaves word of it. The caller has the container's lock.
func (c *Cache) Begin(e *Entry) error {
	e.Kind = kindIntent
	names := fileNamesOf(e.Attachment())
	for i, name := range names {
		e.file = filepath.Join(c.results(), name)
		err := c.write(e, true)
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		old, err := c.read(name, spec.Attachment{})
		if i == len(names)-1 || errors.Is(err, errBroken) || (err == nil && old.Attachment() == e.Attachment()) {
			return c.write(e, false)
		}
	}
	return nil
}

// Finish replaces the intent by the result.
// It fails, unlike a plugin, after all is done: the ADD is taken back then, as DEL and
// CHECK could not do their work.
func (c *Cache) Finish(e *Entry, result json.RawMessage) error {
	e.Kind, e.Result = kindCache, result
	if err := c.write(e, false); err != nil {
		return err
	}
	return c.dropAside(e.Attachment())
}

// write puts the entry in place in one step, so that no reader sees half of it.
// With exclusive an existing file is os.ErrExist.
// libcni truncates and writes, and a crash between the two leaves an empty file that
// its CHECK and GC stumble over (cni#1055).
func (c *Cache) write(e *Entry, exclusive bool) error {
	doc, err := json.Marshal(e)
	if err != nil {
		return cacheError(err)
	}
	var how disk.How
	if exclusive {
		how = disk.New
	}
	return cacheError(disk.Replace(e.file, c.scratch(e.Attachment()), doc, how))
}

// scratch is where the entry of an attachment is written: in the folder of results,
// which may be a file system of its own. Other tools list that folder, and find in the
// scratch file what they will find under its name a moment later.
// Whoever writes holds the attachment's lock, so what stands there is of a killed
// process: the next ADD or DEL of the attachment takes it away.
func (c *Cache) scratch(a spec.Attachment) string {
	return filepath.Join(c.results(), temporary+a.Key())
}

// unlink deletes a file; that it is gone is no error.
func unlink(file string) error { return ignore(os.Remove(file), os.ErrNotExist) }

// remove is unlink with an error for people.
func remove(file string) error { return cacheError(unlink(file)) }

// Remove forgets an attachment: its entry, one that cannot be read as well, what was set
// aside and what a killed process was writing. That there is nothing is no error.
// It goes last of all in a DEL: as long as anything failed, the entry is needed again.
func (c *Cache) Remove(a spec.Attachment) error {
	if err := fault.Check("remove cache entry"); err != nil {
		return err
	}
	errs := []error{remove(c.scratch(a)), c.dropAside(a)}
	for _, name := range fileNamesOf(a) {
		e, err := c.read(name, a)
		// The name may be that of another attachment's entry, too.
		if err == nil && e.Attachment() == a || errors.Is(err, errBroken) {
			err = unlink(filepath.Join(c.results(), name))
		}
		errs = append(errs, cacheError(ignore(err, os.ErrNotExist)))
	}
	return errors.Join(errs...)
}

// List returns all entries in the order of their file names, and the files in their
// place that cannot be read. No folder is no entry.
// A file that goes away meanwhile is left out.
func (c *Cache) List() (entries []*Entry, broken []Broken, err error) {
	names, err := fileNames(c.results())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, cacheError(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue // no network's name begins so; our own scratch files do
		}
		e, err := c.read(name, spec.Attachment{})
		switch {
		case err == nil:
			entries = append(entries, e)
		case !errors.Is(err, os.ErrNotExist):
			broken = append(broken, Broken{name: name, file: filepath.Join(c.results(), name), err: err})
		}
	}
	return entries, broken, nil
}
