// Package netfilter is what plugins with packet filter rules share: masquerading (ipMasq), the
// release of what an attachment owns, and the rules that the reference plugins made.
package netfilter

import (
	"errors"

	"golang.org/x/sys/unix"
)

// lacksNetfilter reports whether an error is that of a kernel without nf_tables.
// There no rule was ever made. No permission is another error, and stays one.
func IsMissing(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
