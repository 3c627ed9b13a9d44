package spec

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/internal/session"
)

// A Call is what a runtime passes to a plugin besides the configuration: the CNI_* variables of the
// environment. The values are unchanged, since an exec'd delegate must see the same environment
// ([Call.Environ]). The zero value requests the about text.
type Call struct {
	Verb          Verb
	ContainerID   string
	NetNS         string // path; may be empty in DEL, GC and STATUS
	IfName        string
	Args          string // CNI_ARGS unchanged
	Path          string // CNI_PATH unchanged
	NetNSOverride bool   // CNI_NETNS_OVERRIDE: the plugin's own namespace is allowed
	SystemBus     string // DBUS_SYSTEM_BUS_ADDRESS unchanged; external plugins find it in their environment
	StateDir      string // CNIBOX_STATE, an absolute path; empty: the default directories. External plugins find it too

	// Session has what the plugins of the call in this process share. [NewRequest] makes one where there is none.
	Session *session.Session
}

// SystemBusEnv is the variable of [Call.SystemBus]; D-Bus defines it, not the specification.
const SystemBusEnv = "DBUS_SYSTEM_BUS_ADDRESS"

// StateEnv is the variable of [Call.StateDir], which is our own.
const StateEnv = "CNIBOX_STATE"

// StateDir returns CNIBOX_STATE. The error for a relative path has code 4, since runtimes start
// plugins in any working directory.
func StateDir(getenv func(string) string) (string, error) {
	dir := getenv(StateEnv)
	if dir != "" && !filepath.IsAbs(dir) {
		return "", Errorf(CodeEnv, "%s %q is not an absolute path", StateEnv, dir)
	}
	return dir, nil
}

// ReadCall reads and checks the CNI_* variables; errors have code 4 and name the variables. An
// empty Verb is not an error here, since it requests the about text. An unknown verb is not an
// error here either: [Plugin.Do] reports it after the configuration.
//
// CNI_PATH may be missing, as the specification says, though the reference plugins require it.
func ReadCall(getenv func(string) string) (Call, error) {
	c := Call{
		Verb:          Verb(getenv("CNI_COMMAND")),
		ContainerID:   getenv("CNI_CONTAINERID"),
		NetNS:         getenv("CNI_NETNS"),
		IfName:        getenv("CNI_IFNAME"),
		Args:          getenv("CNI_ARGS"),
		Path:          getenv("CNI_PATH"),
		NetNSOverride: override(getenv("CNI_NETNS_OVERRIDE")),
		SystemBus:     getenv(SystemBusEnv),
	}
	if c.Verb == Restore || c.Verb == Prepare { // not verbs of the specification
		return c, unknownVerb(c.Verb)
	}
	var err error
	if c.StateDir, err = StateDir(getenv); err != nil {
		return c, err
	}
	// GC, STATUS and VERSION are not about an attachment; runtimes fill the names with any value,
	// such as "dummy".
	if !c.Verb.attached() {
		return c, nil
	}
	// An invalid name is reported before the missing ones, as in the reference.
	if c.ContainerID != "" {
		if err := CheckContainerID(c.ContainerID); err != nil {
			return c, about(err, "CNI_CONTAINERID", c.ContainerID)
		}
	}
	if c.IfName != "" {
		if err := CheckIfName(c.IfName); err != nil {
			return c, about(err, "CNI_IFNAME", c.IfName)
		}
	}
	return c, c.complete()
}

// CheckNames checks the names of an attachment, which are required. An error names its variable;
// the code is 3 or 4.
func (c Call) CheckNames() error {
	if err := CheckContainerID(c.ContainerID); err != nil {
		return about(err, "CNI_CONTAINERID", c.ContainerID)
	}
	if err := CheckIfName(c.IfName); err != nil {
		return about(err, "CNI_IFNAME", c.IfName)
	}
	return nil
}

// about adds a variable and its value to an error.
func about(err error, variable, value string) error {
	e := *AsError(err)
	text := fmt.Sprintf("%s is %q", variable, value)
	if e.Details != "" && e.Details != value {
		text = e.Details + "; " + text
	}
	e.Details = text
	return &e
}

// complete returns one error for all missing variables, in the order of the reference. An empty
// variable is missing. DEL may have no namespace, since the container may be gone.
func (c Call) complete() error {
	var missing []string
	if c.ContainerID == "" {
		missing = append(missing, "CNI_CONTAINERID")
	}
	if c.NetNS == "" && c.Verb != Del {
		missing = append(missing, "CNI_NETNS")
	}
	if c.IfName == "" {
		missing = append(missing, "CNI_IFNAME")
	}
	if missing == nil {
		return nil
	}
	return Errorf(CodeEnv, "required env variables [%s] missing", strings.Join(missing, ","))
}

// override parses CNI_NETNS_OVERRIDE as the reference does: 1, or true in any letter case; any
// other value is false and not an error.
func override(s string) bool { return s == "1" || strings.EqualFold(s, "true") }

// Environ returns the call as CNI_* variables: all six, including empty ones, so that none is
// inherited, and CNI_NETNS_OVERRIDE if it is set. Append them to an inherited environment, since
// the last of equal names counts.
func (c Call) Environ() []string {
	env := []string{
		"CNI_COMMAND=" + string(c.Verb),
		"CNI_CONTAINERID=" + c.ContainerID,
		"CNI_NETNS=" + c.NetNS,
		"CNI_IFNAME=" + c.IfName,
		"CNI_ARGS=" + c.Args,
		"CNI_PATH=" + c.Path,
	}
	if c.NetNSOverride {
		env = append(env, "CNI_NETNS_OVERRIDE=true")
	}
	return env
}

// directories splits a CNI_PATH. Empty parts are skipped: in PATH they would mean the working
// directory.
func directories(path string) []string {
	var list []string
	for _, dir := range filepath.SplitList(path) {
		if dir != "" {
			list = append(list, dir)
		}
	}
	return list
}
