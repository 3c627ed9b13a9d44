// Package netfilter has what plugins with packet filter rules share: CHECK finds rules of the reference in
// place of ours, and the error of a kernel without nf_tables is recognized.
package netfilter

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IsMissing reports whether an error is that of a kernel without nf_tables.
// There no rule was ever created. A missing permission is another error.
func IsMissing(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
