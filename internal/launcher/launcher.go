// Package launcher writes and reads the files under whose names plugins are called. Each is one line,
// "#!" and the path of the program, so that the kernel starts the program with the path of the file as
// its first argument. Whatever replaces or overwrites one name, even through an open file, the others
// remain; with a link for each name it would be all of them.
package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/internal/disk"
)

// Mode is the mode of the files.
const Mode = 0o755

// maxPath is the longest path in the line, in bytes: before 5.1 the kernel reads 127 bytes of a file.
const maxPath = 127 - len(mark)

// mark begins the line.
const mark = "#!"

// Text returns the content of a file that starts a program.
func Text(program string) (string, error) {
	switch {
	case !filepath.IsAbs(program):
		return "", fmt.Errorf("%s: the path of the program must be absolute", program)
	case strings.ContainsAny(program, " \t\n\x00"):
		return "", fmt.Errorf("%q: the kernel ends the path of a #! line at a space; install from a directory without one", program)
	case len(program) > maxPath:
		return "", fmt.Errorf("%s has %d bytes, a #! line at most %d; install from a shorter path", program, len(program), maxPath)
	}
	return mark + program + "\n", nil
}

// Program returns the program that a file starts; empty: the file has another content.
func Program(file string) string {
	text, err := disk.Read(file, 0, len(mark)+maxPath+1)
	if err != nil {
		return ""
	}
	program, ok := strings.CutPrefix(strings.TrimSuffix(string(text), "\n"), mark)
	if want, err := Text(program); !ok || err != nil || want != string(text) {
		return ""
	}
	return program
}

// Starts reports whether a file is the program, a link to it, or a launcher of it. If the line names
// no file, as where the directory is mounted at another path, the file of that name beside the launcher
// counts.
func Starts(file string, program os.FileInfo) bool {
	info, err := os.Stat(file)
	if err != nil {
		return false
	}
	if os.SameFile(info, program) {
		return true
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 || info.Size() > int64(len(mark)+maxPath+1) {
		return false
	}
	path := Program(file)
	if path == "" {
		return false
	}
	if info, err = os.Stat(path); os.IsNotExist(err) {
		info, err = os.Stat(filepath.Join(filepath.Dir(file), filepath.Base(path)))
	}
	return err == nil && os.SameFile(info, program)
}
