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

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

// MaxSize is the maximum size of a record that is read, in bytes. Most have less than 500; one
// contains a configuration.
const MaxSize = spec.MaxConf + 1<<10

// TempSuffix ends the name of a record that is being written.
const TempSuffix = ".tmp"

// Dir is the path of a directory with one small JSON file for each attachment. Files are replaced
// by rename, and never written or read through a symbolic link. The first write creates the
// directory.
type Dir string

// ResolveDir returns the directory that a configuration names; for the empty string it is the usual
// one, or that of the same name in the state directory of the call. A path must be absolute, since
// the working directory of plugins varies: for a relative one it returns the usual directory and an
// error of code 7.
func ResolveDir(c spec.Call, configured string, usual Dir) (Dir, error) {
	usual = Dir(state.Dir(c.StateDir, string(usual)))
	switch {
	case configured == "":
		return usual, nil
	case !filepath.IsAbs(configured) || strings.Contains(configured, "\x00"):
		return usual, spec.Errorf(spec.CodeConfig, `"dataDir" %q is not an absolute path`, configured).AtKey("dataDir")
	}
	return Dir(configured), nil
}

// ConfiguredDir reads the one key that DEL and GC need. For an unreadable configuration it warns,
// and returns the usual directory.
func ConfiguredDir(r *spec.Request, usual Dir) Dir {
	var c struct {
		DataDir string `json:"dataDir"`
	}
	derr := r.Decode(&c)
	dir, err := ResolveDir(r.Call, c.DataDir, usual)
	if derr != nil {
		r.Warn("%v: using dataDir %s", derr, dir)
	}
	if err != nil {
		r.Warn("%v: using %s", err, dir)
	}
	return dir
}

// DirFunc returns [spec.Plugin.Records] for a plugin with that usual directory. It ignores errors of
// the configuration, which the verbs report.
func DirFunc(usual Dir) func(*spec.Request) string {
	return func(r *spec.Request) string {
		quiet := *r
		quiet.Warn = func(string, ...any) {}
		return string(ConfiguredDir(&quiet, usual))
	}
}

// Make creates the directory, so that it can be locked. It ignores an error, which writing repeats.
func (d Dir) Make() Dir {
	os.MkdirAll(string(d), 0o700)
	return d
}

// CheckWritable reports, for STATUS, a directory in which no record can be created. The code is 50.
func (d Dir) CheckWritable() error {
	if err := disk.Creatable(string(d)); err != nil {
		return spec.Errorf(spec.CodeNotReady, "data directory %s cannot be used: %w", d, err)
	}
	return nil
}

// Lock locks the directory. A missing directory has no records, and nothing is locked.
func (d Dir) Lock(ctx context.Context) (unlock func(), err error) {
	fd, err := unix.Open(string(d), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}, nil
	}
	if unlock, err = flock.Wait(ctx, fd, unix.LOCK_EX); err != nil {
		return nil, spec.Errorf(spec.CodeTryAgain, "lock of %s: %w", d, err)
	}
	return unlock, nil
}

// Write stores v, in a directory that only root can read. It does not sync: the namespace of a
// record ends with a power failure. Verbs of one container are not concurrent, so the temporary
// file has a fixed name. Errors have code 5.
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

// Exchange is Write, and returns a function that restores the former record.
func (d Dir) Exchange(name string, v any) (restore func() error, err error) {
	old, readErr := disk.Read(filepath.Join(string(d), name), unix.O_NOFOLLOW, MaxSize)
	return func() error {
		if readErr != nil {
			return d.Remove(name)
		}
		return d.Replace(name, old)
	}, d.Write(name, v)
}

// Replace is Write of encoded bytes, whose errors have no code.
func (d Dir) Replace(name string, b []byte) error {
	path := filepath.Join(string(d), name)
	return disk.Replace(path, path+TempSuffix, b, 0)
}

// Read decodes the record into v. The error is os.ErrNotExist if there is none. It does not read a
// link, a device or a pipe. After an error v may be partly changed.
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

// Remove deletes the record and the rest of an interrupted write. A missing record or directory is
// not an error.
func (d Dir) Remove(name string) error {
	path := filepath.Join(string(d), name)
	return errors.Join(RemoveFile(path), RemoveFile(path+TempSuffix))
}

// RemoveFile deletes a file, which may be missing. A directory that is not empty was not created by
// a plugin, and stays. Errors have code 5.
func RemoveFile(path string) error {
	if err := disk.Remove(path); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
		return spec.Errorf(spec.CodeIO, "%w", err)
	}
	return nil
}

// DeleteStale is for GC: it deletes the records of a network's attachments that are not valid any
// more. An error does not stop it. Records without an owner are the reference's; only DEL deletes
// them.
func (d Dir) DeleteStale(network string, valid []spec.Attachment) error {
	live := make(map[spec.Attachment]bool)
	for _, a := range valid {
		live[spec.Attachment{Network: network, ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	return Each(d, func(name string, rec *Record[struct{}]) error {
		if rec.Network == network && !live[rec.Attachment] {
			return d.Remove(name)
		}
		return nil
	})
}

// Each calls fn with the name of each record, in any order. An error does not stop it. The
// directory may be missing.
func (d Dir) Each(fn func(name string) error) error {
	entries, err := disk.List(string(d))
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
