package cnibox

import (
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/launcher"
	"github.com/cnibox/cnibox/spec"
)

// verifyCommand reports the applets whose names in a directory do not lead to this binary, as after
// another package has replaced some links; the exit code is then 1.
func verifyCommand(p applet.Process, args []string) int {
	path := ""
	args, err := parse(args, nil, &path)
	switch {
	case err != nil:
		return usage(p, "verify: %s", err)
	case len(args) != 1:
		return usage(p, "verify needs a directory")
	}
	dir := args[0]
	self, err := os.Stat(executable)
	if err != nil {
		p.Complain("cnibox", "verify: %s", err)
		return 1
	}
	if same, err := sameContent(filepath.Join(dir, copyName), executable); err == nil && same { // the copy of install --copy
		if self, err = os.Stat(filepath.Join(dir, copyName)); err != nil {
			p.Complain("cnibox", "verify: %s", err)
			return 1
		}
	}
	wrong := 0
	for _, a := range p.Applets {
		if err := verify(filepath.Join(dir, a.Name), self, path); err != nil {
			fmt.Fprintf(p.Stdout, "%s: %s\n", a.Name, spec.Printable(err.Error()))
			wrong++
		}
	}
	if wrong > 0 {
		p.Complain("cnibox", "%d of %d names in %s do not lead to this binary; `cnibox install %s` creates them, with --leave only those that are missing", wrong, len(p.Applets), dir, dir)
		return 1
	}
	fmt.Fprintf(p.Stdout, "%s: all %d names lead to this binary\n", spec.Printable(dir), len(p.Applets))
	return 0
}

// verify returns nil if path starts the file self, by device and inode, where its directory has the
// path at; empty: its own. The error describes what the path leads to.
func verify(path string, self os.FileInfo, at string) error {
	if launcher.Starts(path, self) && at == "" {
		return nil
	}
	st, err := os.Stat(path)
	target, linkErr := os.Readlink(path)
	if program := launcher.Program(path); linkErr != nil && program != "" {
		here := program
		if at != "" && filepath.Dir(program) == at {
			here = filepath.Join(filepath.Dir(path), filepath.Base(program))
		}
		st, err := os.Stat(here)
		switch {
		case err == nil && os.SameFile(st, self):
			return nil
		case err != nil:
			return fmt.Errorf("starts %s, which is missing", program)
		}
		return fmt.Errorf("starts %s, another file", program)
	}
	switch {
	case err == nil && os.SameFile(st, self):
		return nil
	case errors.Is(err, os.ErrNotExist) && linkErr == nil:
		return fmt.Errorf("a link to %s, which is missing", target)
	case errors.Is(err, os.ErrNotExist):
		return errors.New("missing")
	case err != nil:
		return err
	}
	days := int(time.Since(st.ModTime()).Hours() / 24)
	if linkErr == nil {
		return fmt.Errorf("a link to %s, another file (%d bytes, %d days old)", target, st.Size(), days)
	}
	return fmt.Errorf("another program (%d bytes, %d days old)", st.Size(), days)
}

// sameContent reports whether two files have the same content.
func sameContent(a, b string) (bool, error) {
	sumA, errA := sum(a)
	sumB, errB := sum(b)
	return sumA == sumB, errors.Join(errA, errB)
}

// sum returns a hash of a file's content.
func sum(file string) (sum [sha512.Size]byte, err error) {
	f, err := openRegular(file)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha512.New()
	_, err = io.Copy(h, f)
	return [sha512.Size]byte(h.Sum(nil)), err
}
