package wire

import (
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The error for a batch that is too large for the socket names the limit.
func TestUnsentNamesLimit(t *testing.T) {
	if err := unsent(unix.EMSGSIZE); !errors.Is(err, unix.EMSGSIZE) || !strings.Contains(err.Error(), "net.core.wmem_max") {
		t.Error(err)
	}
	if err := unsent(io.EOF); err.Error() != "nft: EOF" {
		t.Error(err)
	}
}
