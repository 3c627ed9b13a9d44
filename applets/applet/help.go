package applet

import (
	"fmt"
	"io"
	"strings"
)

// isHelp reports whether a word asks for help, as people write it.
func IsHelp(arg string) bool { return arg == "help" || arg == "--help" || arg == "-h" }

// writeHelp shows an applet's summary and its keys or usage.
// A help text begins with a newline in its source, for its lines to stand in columns.
func WriteHelp(a *Applet, w io.Writer) int {
	fmt.Fprintf(w, "%s: %s\n\n%s\n", a.Name, a.Summary, strings.Trim(a.Help, "\n"))
	return 0
}
