package cniexec

import (
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/cniexec/inventory"
	"cnibox/internal/tty"
)

// screen is that of stdout. The state of what is not as it should be is red.
func (c *call) screen() tty.Screen {
	s := tty.Of(c.Stdout, c.Getenv)
	s.Red = func(cell string) bool {
		return cell == inventory.VerdictFault || strings.HasPrefix(cell, inventory.VerdictFault+":") || strings.HasPrefix(cell, inventory.StateGone+":") || cell == inventory.StateInterrupted
	}
	return s
}

// write writes to stdout. That nothing reads it any more, as behind head(1), is not an error.
func (c *call) write(text string) (exit int, err error) {
	if _, err := io.WriteString(c.Stdout, text); err != nil && !errors.Is(err, unix.EPIPE) {
		return 0, err
	}
	return exitOK, nil
}
