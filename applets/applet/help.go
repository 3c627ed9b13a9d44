package applet

import (
	"fmt"
	"io"
	"strings"
)

// IsHelp reports whether an argument asks for help.
func IsHelp(arg string) bool { return arg == "help" || arg == "--help" || arg == "-h" }

// WriteHelp writes an applet's summary and its keys or usage. A help text begins with a newline, so
// that its lines are aligned in the source.
func WriteHelp(a *Applet, w io.Writer) int {
	fmt.Fprintf(w, "%s: %s\n\n%s\n", a.Name, a.Summary, strings.Trim(a.Help, "\n"))
	return 0
}
