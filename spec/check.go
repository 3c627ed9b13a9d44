package spec

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the longest file name, in bytes: NAME_MAX, include/uapi/linux/limits.h.
// Container IDs, networks and plugins become file names.
const maxName = 255

// maxNetworkName is the longest name of a network, in bytes: maxLength in the schema of
// configurations.
const maxNetworkName = 200

// maxIfName is the longest interface name, in bytes: IFNAMSIZ without the
// closing NUL, include/uapi/linux/if.h.
const maxIfName = 15

// maxAltName is the same for an alternative name: ALTIFNAMSIZ, of the same file.
const maxAltName = 127

// CheckContainerID reports whether the name can be a container ID: a letter or digit, then letters,
// digits, "_", "." and "-", 255 bytes at most. The code is 3 if it is empty and 4 if it is invalid.
// The alphabet is that of specification 1.0.0. Older versions have none, but the name becomes a
// file name here in all versions. A valid name has no "/" and does not begin with "." or "-".
func CheckContainerID(id string) error {
	switch {
	case id == "":
		return Errorf(CodeUnknown, "missing containerID")
	case !isPlain(id):
		return &Error{Code: CodeEnv, Msg: "invalid characters in containerID", Details: id}
	case len(id) > maxName:
		return tooLong(CodeEnv, "containerID", maxName)
	}
	return nil
}

// CheckNetworkName is [CheckContainerID] for the name of a network, with the same alphabet for the
// same reason; the code is 7. [NewRequest] accepts only 200 bytes.
func CheckNetworkName(name string) error {
	switch {
	case name == "":
		return Errorf(CodeConfig, "missing network name").WithDetails(`set "name"`).AtKey("")
	case !isPlain(name):
		return &Error{Code: CodeConfig, Msg: "invalid characters found in network name", Details: name}
	case len(name) > maxName:
		return tooLong(CodeConfig, "network name", maxName)
	}
	return nil
}

// CheckNewNetworkName is [CheckNetworkName] with a lower limit, for verbs that release nothing:
// earlier releases have attached containers to networks with longer names.
func CheckNewNetworkName(name string) error {
	err := CheckNetworkName(name)
	if err == nil && len(name) > maxNetworkName {
		return tooLong(CodeConfig, "network name", maxNetworkName)
	}
	return err
}

// tooLong returns the error for a name that is too long.
func tooLong(code int, what string, longest int) *Error {
	return &Error{Code: code, Msg: what + " is too long", Details: strconv.Itoa(longest) + " bytes at most"}
}

// CheckIfName reports whether the kernel accepts the name for an interface unchanged; the code is
// 4. A "%" is rejected, since the kernel treats it as a pattern and chooses another name.
//
// The rules are those of dev_valid_name (net/core/dev.c) and of devinet_sysctl_register
// (net/ipv4/devinet.c), and the texts those of the reference; the length counts bytes, not
// characters.
func CheckIfName(name string) error { return checkName(name, maxIfName) }

// CheckLinkName is [CheckIfName] for an existing link: an alternative name, of up to 127 bytes, is
// also valid.
func CheckLinkName(name string) error { return checkName(name, maxAltName) }

// checkName implements both, with the longest valid length.
func checkName(name string, longest int) error {
	msg := ""
	switch {
	case name == "":
		msg = "interface name is empty"
	case len(name) > longest:
		return &Error{Code: CodeEnv, Msg: "interface name is too long",
			Details: "interface name should be less than " + strconv.Itoa(longest+1) + " characters"}
	case name == "." || name == "..":
		msg = "interface name is . or .."
	case strings.ContainsAny(name, "/:") || strings.ContainsFunc(name, unicode.IsSpace):
		msg = "interface name contains / or : or whitespace characters"
	case strings.Contains(name, "%"):
		msg = "interface name contains %"
	case name == "all" || name == "default":
		msg = "interface name is all or default, which stand for settings of interfaces"
	case !isClean(name):
		msg = "interface name contains control characters or is not UTF-8"
	default:
		return nil
	}
	return &Error{Code: CodeEnv, Msg: msg}
}

// CheckType reports whether the name can be a plugin's: a file name, never a path. The code is 7.
// Only CNI_PATH determines where a plugin is found (CVE-2021-20206: a type with "../" ran any
// program).
func CheckType(name string) error {
	switch {
	case name == "":
		return Errorf(CodeConfig, "missing plugin type")
	case name == "." || name == ".." || strings.ContainsAny(name, `/\`) || !isClean(name) || len(name) > maxName:
		return Errorf(CodeConfig, "invalid plugin type %q", name)
	}
	return nil
}

// isPlain reports whether s has the alphabet of container IDs and networks and begins with a letter
// or a digit. An empty string does not.
func isPlain(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// isClean reports whether s is UTF-8 without control characters.
func isClean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
