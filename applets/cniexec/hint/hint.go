// Package hint says what the user can do about an error, or about what CHECK has found.
package hint

import (
	"errors"
	"os"
	"strings"

	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/spec"
)

// An Error is an error with advice about it.
type Error struct {
	Err  error
	Hint string // empty: no advice, and no other hint fits
}

// Error returns the text without the hint.
func (h *Error) Error() string { return h.Err.Error() }

// Unwrap returns the error that the hint concerns.
func (h *Error) Unwrap() error { return h.Err }

// Start explains an error of execve(2) for a plugin or a command; empty: it is another error.
func Start(err error) string {
	var start *os.PathError
	switch {
	case !errors.As(err, &start) || start.Op != program.OpStart:
	case errors.Is(start, os.ErrPermission):
		return start.Path + " must be an executable file (chmod +x), on a file system mounted without noexec"
	case errors.Is(start, os.ErrNotExist):
		return "the file exists, but not the interpreter that it names after #! or as an ELF file"
	}
	return ""
}

// Line returns an error with its details, in one line.
func Line(err error) string {
	e := spec.AsError(err)
	text := e.Msg
	if e.Details != "" {
		text += ": " + e.Details
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

// Reason returns an error of CHECK or RESTORE in one line, without the name of the plugin.
func Reason(err error) string {
	text := Line(err)
	for _, verb := range []string{"check", "restore"} {
		if plugin, after, found := strings.Cut(text, " failed ("+verb+"): "); found && strings.HasPrefix(plugin, "plugin type=") {
			return after
		}
	}
	return text
}
