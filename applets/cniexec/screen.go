package cniexec

import (
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/tty"
)

// screen returns the screen of stdout. A wrong state is red.
func (c *call) screen() tty.Screen {
	s := tty.Of(c.Stdout, c.Getenv)
	s.Red = func(cell string) bool {
		return cell == chain.StateFault || strings.HasPrefix(cell, chain.StateFault+":") || strings.HasPrefix(cell, chain.StateGone+":") || cell == chain.StateInterrupted
	}
	return s
}

// nothing says on a terminal that there is nothing to print. In a pipe or a file, empty output says it.
func (c *call) nothing(text string) {
	if tty.IsTerminal(c.Stdout) && c.output != outputJSON {
		c.summarize("%s", text)
	}
}

// write writes to stdout. A pipe without a reader, as after head(1), is not an error.
func (c *call) write(text string) (exit int, err error) {
	if _, err := io.WriteString(c.Stdout, text); err != nil && !errors.Is(err, unix.EPIPE) {
		return 0, err
	}
	return exitOK, nil
}
