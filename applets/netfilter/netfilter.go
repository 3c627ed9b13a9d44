// Package netfilter has what plugins with packet filter rules share: CHECK accepts the rules of the
// reference instead of ours, and the error of a kernel without nf_tables is recognized.
package netfilter

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IsMissing reports whether an error is that of a kernel without nf_tables. On such a kernel no
// rule was ever created. A missing permission is another error.
func IsMissing(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
