package rtnl

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// errMalformed is about bytes that no kernel sends.
var errMalformed = errors.New("malformed netlink message")

// A kernelError is a refusal in the kernel's words: the error number, and the
// explanation of the extended acknowledgement where there is one. It answers
// errors.Is for its number, and for os.ErrNotExist when that is about a thing
// that is not there.
type kernelError struct {
	errno  unix.Errno
	text   string // empty: the kernel did not explain
	absent bool
}

func (e *kernelError) Error() string {
	if e.text == "" {
		return e.errno.Error()
	}
	return e.errno.Error() + ": " + e.text
}

func (e *kernelError) Unwrap() error { return e.errno }

func (e *kernelError) Is(target error) bool { return e.absent && target == os.ErrNotExist }

// kernelVerdict reads NLMSG_ERROR and NLMSG_DONE; request is the type of the
// message that it answers. Layout: include/uapi/linux/netlink.h, struct nlmsgerr.
func kernelVerdict(m message, request uint16) error {
	if len(m.data) < 4 {
		if m.typ == unix.NLMSG_DONE {
			return nil
		}
		return io.ErrUnexpectedEOF
	}
	code := int32(binary.NativeEndian.Uint32(m.data))
	if code >= 0 {
		return nil
	}
	errno := unix.Errno(-code)
	return &kernelError{errno: errno, text: explanation(m), absent: absent(errno, request)}
}

// absent tells which numbers mean that the thing asked for is not there:
// ENODEV for links, ESRCH for routes, EADDRNOTAVAIL for an address to delete.
// ENOENT says so by itself.
func absent(errno unix.Errno, request uint16) bool {
	switch errno {
	case unix.ENODEV, unix.ESRCH:
		return true
	case unix.EADDRNOTAVAIL:
		return request == unix.RTM_DELADDR
	}
	return false
}

// explanation returns the message of an extended acknowledgement. It stands
// behind the error number and a copy of the request, of which a capped
// acknowledgement has the header alone.
func explanation(m message) string {
	skip := 4
	if m.typ == unix.NLMSG_ERROR {
		if len(m.data) < 4+unix.SizeofNlMsghdr {
			return ""
		}
		skip += unix.SizeofNlMsghdr
		if m.flags&unix.NLM_F_CAPPED == 0 {
			skip = 4 + align(int(binary.NativeEndian.Uint32(m.data[4:])))
		}
	}
	if m.flags&unix.NLM_F_ACK_TLVS == 0 || skip < 0 || skip > len(m.data) {
		return ""
	}
	ad, err := netlink.NewAttributeDecoder(m.data[skip:])
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NLMSGERR_ATTR_MSG {
			return ad.String()
		}
	}
	return ""
}
