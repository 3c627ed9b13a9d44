package spec

import "fmt"

// The codes of an [Error]: CNI specification 1.1.0, section "Error", and
// 8, which the reference plugins use for an unusable network namespace.
const (
	CodeVersion     = 1   // incompatible version
	CodeUnsupported = 2   // unsupported field; the message has its key and value
	CodeUnknown     = 3   // container unknown: no DEL is needed
	CodeEnv         = 4   // environment variables missing or invalid; the message names them
	CodeIO          = 5   // reading the configuration or writing the result
	CodeDecode      = 6   // JSON that cannot be decoded
	CodeConfig      = 7   // invalid network configuration
	CodeNetNS       = 8   // unusable network namespace
	CodeTryAgain    = 11  // transient: try again later
	CodeNotReady    = 50  // STATUS: no ADD can be served now
	CodeLimited     = 51  // STATUS: as 50, and running containers have limited connectivity
	CodeBusy        = 100 // something asked for belongs to another attachment
	CodeExhausted   = 101 // no address is free
	CodeCheck       = 102 // CHECK: the attachment is not as ADD left it
	CodePlugin      = 103 // a plugin could not be found or started, or its answer not be understood
	CodeInternal    = 999 // what nobody foresaw
)

// An Error is the specification's error object around a cause.
//
// Error() is Msg, then Details after "; ". The wrapped Err serves errors.Is
// and is not printed.
type Error struct {
	Code    int    `json:"code"`
	Msg     string `json:"msg"`
	Details string `json:"details,omitempty"`
	Err     error  `json:"-"`
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an error with the given code; %w wraps as in [fmt.Errorf].
func Errorf(code int, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), Err: err}
}
