package applets

import (
	"errors"

	"golang.org/x/sys/unix"
)

// lacksNetfilter reports whether an error is that of a kernel without nf_tables.
// There no rule was ever made. No permission is another error, and stays one.
func lacksNetfilter(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
