// Package record keeps one small JSON file for each attachment: what a plugin must know at
// DEL, CHECK and GC and cannot read from the kernel.
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
	"cnibox/internal/flock"
	"cnibox/internal/state"
	"cnibox/spec"
)

// longestRecord is the most that is read of one record, in bytes. Most have less
// than 500; one holds a configuration, and names.
const MaxSize = spec.MaxConf + 1<<10

// recordTemp ends the name of a record that is being written.
const TempSuffix = ".tmp"

// records is a folder with one small JSON file for each attachment: what a
// plugin that works on a result must know at DEL. Files are replaced whole, by
// rename, and never written or read through a symbolic link.
// The string is the path of the folder, which is made when the first one is written.
type Dir string

// A recordOwner stands in each record. GC needs it, since a file name says
// neither where the container ID ends nor which network it was; records of the
// reference plugins have none, so GC leaves them to DEL.
// It compares with ==, and serves as a map key.
type Owner struct {
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
}

// In returns the directory that a configuration names; the empty string is the usual one, or
// the one of its name in the state directory of the call. A path must be absolute, since
// runtimes start plugins anywhere: for another one the usual directory comes with an error of
// code 7.
func In(c spec.Call, configured string, usual Dir) (Dir, error) {
	usual = Dir(state.Dir(c.StateDir, string(usual)))
	switch {
	case configured == "":
		return usual, nil
	case !filepath.IsAbs(configured) || strings.Contains(configured, "\x00"):
		return usual, spec.Errorf(spec.CodeConfig, `"dataDir" %q is not an absolute path`, configured).AtKey("dataDir")
	}
	return Dir(configured), nil
}

// recordsOf reads the one key that DEL and GC need, whatever else the
// configuration holds.
// A configuration that cannot be read costs a warning, and the usual folder is taken.
func Configured(r *spec.Request, usual Dir) Dir {
	var c struct {
		DataDir string `json:"dataDir"`
	}
	derr := r.Decode(&c)
	dir, err := In(r.Call, c.DataDir, usual)
	if derr != nil {
		r.Warn("%v: dataDir is taken to be %s", derr, dir)
	}
	if err != nil {
		r.Warn("%v: it is taken to be %s", err, dir)
	}
	return dir
}

// ownerOf names an attachment in its record.
func OwnerOf(a spec.Attachment) Owner {
	return Owner{a.Network, a.ContainerID, a.IfName}
}

// attachment is whose record it is.
func (o Owner) Attachment() spec.Attachment {
	return spec.Attachment{Network: o.Network, ContainerID: o.ContainerID, IfName: o.IfName}
}

// Of reports whether the record is the attachment's.
func (o Owner) Of(a spec.Attachment) bool { return o == OwnerOf(a) }

// made makes the folder, which can be locked then. If that fails, so does writing.
func (d Dir) Make() Dir {
	os.MkdirAll(string(d), 0o700)
	return d
}

// notDir reports whether something other than a directory has its path.
func (d Dir) NotDir() bool {
	info, err := os.Stat(string(d))
	return err == nil && !info.IsDir()
}

// locked runs fn while no other verb does what is done under this lock. The lock is on the
// folder, so no file is needed; without a folder there are no records.
func (d Dir) Locked(ctx context.Context, fn func() error) error {
	fd, err := unix.Open(string(d), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fn()
	}
	unlock, err := flock.Wait(ctx, fd, unix.LOCK_EX)
	if err != nil {
		return spec.Errorf(spec.CodeTryAgain, "lock of %s: %w", d, err)
	}
	defer unlock()
	return fn()
}

// write stores v, in a folder that root alone may look into.
// Nothing is synced: what a record is about does not outlive a power cut. Verbs of one
// container come one after another, so a name for the temporary file is enough. Errors
// have code 5.
func (d Dir) Write(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := d.Replace(name, b); err != nil {
		return spec.Errorf(spec.CodeIO, "%w", err)
	}
	return nil
}

// replace is write without the encoding and the code.
func (d Dir) Replace(name string, b []byte) error {
	path := filepath.Join(string(d), name)
	return disk.Replace(path, path+TempSuffix, b, 0)
}

// read decodes the record into v. The error is os.ErrNotExist if there is
// none; a link, a device or a pipe in its place is not read.
// v may be changed in part when it fails.
func (d Dir) Read(name string, v any) error {
	path := filepath.Join(string(d), name)
	b, err := disk.Read(path, unix.O_NOFOLLOW, MaxSize)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// remove deletes the record and what an interrupted write left of it.
// One that is not there is fine, and so is a folder that is none.
func (d Dir) Remove(name string) error {
	path := filepath.Join(string(d), name)
	return errors.Join(RemoveFile(path), RemoveFile(path+TempSuffix))
}

// dropFile deletes a file that need not be there. Errors have code 5.
func RemoveFile(path string) error {
	if err := disk.Remove(path); err != nil {
		return spec.Errorf(spec.CodeIO, "%w", err)
	}
	return nil
}

// keep deletes the records of a network's attachments that are not valid any
// more, and goes on past errors. A record without an owner is not judged.
// It is GC's. valid is the network's, other networks' records stay.
func (d Dir) DeleteStale(network string, valid []spec.Attachment) error {
	live := make(map[Owner]bool)
	for _, a := range valid {
		live[Owner{network, a.ContainerID, a.IfName}] = true
	}
	return d.Each(func(name string) error {
		var owner Owner
		if d.Read(name, &owner) == nil && owner.Network == network && !live[owner] {
			return d.Remove(name)
		}
		return nil
	})
}

// each calls fn with the name of each record, in any order, and goes on past errors. A
// folder that is not there has none.
func (d Dir) Each(fn func(name string) error) error {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasSuffix(e.Name(), TempSuffix) {
			errs = append(errs, fn(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// dropInterrupted deletes what writers left that were killed. The caller has the lock.
func (d Dir) RemoveTemporary() error {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), TempSuffix) {
			errs = append(errs, RemoveFile(filepath.Join(string(d), e.Name())))
		}
	}
	return errors.Join(errs...)
}

// recordName is the name of an attachment's record. The key is in it and not the names,
// which may be too long, and of which several together can be written alike.
func Name(a spec.Attachment) string { return a.Key() + ".json" }
