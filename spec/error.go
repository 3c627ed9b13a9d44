package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// The codes of an [Error]: CNI specification 1.1.0, section "Error", and
// 8, which the reference plugins use for an unusable network namespace.
const (
	// The specification assigns 1 to 99. Codes from 100 on are ours, the same in all plugins. A
	// runtime acts on 3, 11, 50 and 51; the others are for people.
	CodeVersion     = 1   // incompatible version
	CodeUnsupported = 2   // unsupported field; the message has its key and value
	CodeUnknown     = 3   // container unknown: no DEL is needed
	CodeEnv         = 4   // environment variables missing or invalid; the message names them
	CodeIO          = 5   // reading the configuration or writing the result
	CodeDecode      = 6   // JSON that cannot be decoded
	CodeConfig      = 7   // invalid network configuration
	CodeNetNS       = 8   // unusable network namespace
	CodeTryAgain    = 11  // transient: try again later
	CodeNotReady    = 50  // STATUS: this host cannot serve an ADD
	CodeLimited     = 51  // STATUS: as 50, and running containers have limited connectivity
	CodeBusy        = 100 // a requested resource belongs to another attachment
	CodeExhausted   = 101 // no address is free
	CodeCheck       = 102 // CHECK: the attachment is not as ADD left it
	CodePlugin      = 103 // a plugin or a command is missing, cannot be started, or gives an invalid answer
	CodeHost        = 104 // the host lacks what the plugin needs, which STATUS reports with 50
	CodeInternal    = 999 // unexpected
)

// ErrNoAnswer matches the error of a plugin that was killed, panicked, or printed an invalid
// answer: what it has done is unknown.
var ErrNoAnswer = errors.New("no answer")

// An Error is the specification's error object with its cause.
//
// Error() is Msg, then Details after "; ". The wrapped Err serves errors.Is and is not printed.
type Error struct {
	Code    int    `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
	Err     error  `json:"-"`
}

// Error returns the text, in one line unless the details have more.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Unwrap returns the cause; nil if there is none.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an error with the given code, unless %w, as in [fmt.Errorf], wraps an [Error]: then it has the code and
// the details of that. Without %w the text is the cause as well, so errors.Is finds nothing in it.
func Errorf(code int, format string, args ...any) *Error {
	return asError(fmt.Errorf(format, args...), code)
}

// duplicate is also part of the reference's error text.
const duplicate = "duplicate allocation is not allowed"

// Duplicate returns the error of an IPAM plugin for a second ADD of an attachment, which has the
// address. It has code 100.
func Duplicate(a Attachment, ip netip.Addr) *Error {
	return Errorf(CodeBusy, "%s has been allocated to %s, %s", ip, a.ContainerID, duplicate).
		WithDetails("run DEL of interface %s before its next ADD", a.IfName)
}

// WithDetails returns a copy of the error with a text added to its details. So Msg can be an exact
// phrase of the reference, which people and scripts search for, and the details name the key and
// what to write instead.
func (e *Error) WithDetails(format string, args ...any) *Error {
	out := *e
	out.Details = joinDetails(e.Details, fmt.Sprintf(format, args...))
	return &out
}

// joinDetails joins two texts, of which either may be empty.
func joinDetails(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// AsError returns the error object of err for the runtime: its whole text, and the code of the
// [Error] in it, of the first one if errors were joined. An error without a
// code gets 999. It returns nil for nil. Details stay details, unless a text follows them.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	return asError(err, CodeInternal)
}

// asError is AsError with the code of an error in which there is none.
func asError(err error, code int) *Error {
	out := &Error{Code: code, Msg: err.Error(), Err: err}
	var e *Error
	switch {
	case !errors.As(err, &e):
		return out
	case any(err) == any(e): // the outermost alone
		return e
	}
	out.Code = e.Code
	if msg, ok := strings.CutSuffix(out.Msg, "; "+e.Details); ok && e.Details != "" { // the text of e has its details
		out.Msg, out.Details = msg, e.Details
	}
	return out
}

// ErrNeedsAdd matches errors of CHECK and RESTORE about state that RESTORE cannot set, so that DEL
// and ADD are needed.
var ErrNeedsAdd = errors.New("DEL and ADD are needed")

// A needsAdd is an error that matches [ErrNeedsAdd].
type needsAdd struct{ error }

func (a needsAdd) Is(target error) bool { return target == ErrNeedsAdd }
func (a needsAdd) Unwrap() error        { return a.error }

// NeedsAdd returns an error that matches [ErrNeedsAdd], with the same text; nil for nil.
func NeedsAdd(err error) error {
	if err == nil {
		return nil
	}
	return needsAdd{err}
}

// outsideStatus replaces a code that only STATUS may use by that of other verbs, also in an error
// of a delegate.
func outsideStatus(err error) error {
	e := AsError(err)
	if e == nil || e.Code != CodeNotReady && e.Code != CodeLimited {
		return err
	}
	return &Error{Code: CodeHost, Msg: e.Msg, Details: e.Details, Err: err}
}

// Encode returns the error for stdout, in the given version, or the newest if that is not
// supported: indented by four spaces, without a newline at the end, with printable characters only.
// Long quoted values in Msg are cut.
func (e *Error) Encode(v Version) []byte {
	if !isSupported(v.String(), Version{}) {
		v = Newest
	}
	short := *e
	short.Msg = Shorten(e.Msg)
	b, _ := json.MarshalIndent(struct { // numbers and strings cannot fail
		CNIVersion string `json:"cniVersion"`
		*Error
	}{v.String(), &short}, "", "    ")
	return EscapeJSON(b)
}
