package applets

import (
	"errors"

	"golang.org/x/sys/unix"
)

// lacksNetfilter tells the errors of a kernel that has no nf_tables at all.
// There no rule was ever made. No permission is another error, and stays one.
func lacksNetfilter(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}
