package spec

import (
	"fmt"
	"path/filepath"
	"strings"

	"cnibox/internal/netns"
)

// A Call is what a runtime passes to a plugin besides the configuration: the CNI_*
// variables of the environment.
// It is kept as it came, since an exec'd delegate must see the same environment
// ([Call.Environ]). The zero value asks for the about text.
type Call struct {
	Verb          Verb
	ContainerID   string
	NetNS         string // path; may be empty in DEL, GC and STATUS
	IfName        string
	Args          string // CNI_ARGS as it came
	Path          string // CNI_PATH as it came
	NetNSOverride bool   // CNI_NETNS_OVERRIDE: our own namespace is meant
	SystemBus     string // DBUS_SYSTEM_BUS_ADDRESS as it came; others find it in their environment
	StateDir      string // CNIBOX_STATE, an absolute path; empty: the default directories. Others find it as well

	// NS is what is at NetNS, opened and shared by what runs the plugins of the call in this process;
	// nil: each opens the path.
	NS *netns.NS
}

// SystemBusEnv is the variable of [Call.SystemBus], which is not of the specification but of
// D-Bus.
const SystemBusEnv = "DBUS_SYSTEM_BUS_ADDRESS"

// StateEnv is the variable of [Call.StateDir], which is our own.
const StateEnv = "CNIBOX_STATE"

// StateDir returns CNIBOX_STATE. A path that is not absolute has code 4: runtimes start plugins
// anywhere.
func StateDir(getenv func(string) string) (string, error) {
	dir := getenv(StateEnv)
	if dir != "" && !filepath.IsAbs(dir) {
		return "", Errorf(CodeEnv, "%s %q is not an absolute path", StateEnv, dir)
	}
	return dir, nil
}

// ReadCall reads and checks the CNI_* variables; errors have code 4 and name
// the variables. An empty Verb is not an error here, since it asks for the about
// text, nor is an unknown one, which [Verbs.Do] reports after the configuration.
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
	if c.Verb == Restore || c.Verb == Prepare { // which are not verbs of the specification
		return c, unknownVerb(c.Verb)
	}
	var err error
	if c.StateDir, err = StateDir(getenv); err != nil {
		return c, err
	}
	// GC, STATUS and VERSION are about no attachment; runtimes fill the names with
	// anything, as "dummy".
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

// CheckNames checks the names of an attachment, which must be there. An error says which
// variable it is about; the code is 3 or 4.
func (c Call) CheckNames() error {
	if err := CheckContainerID(c.ContainerID); err != nil {
		return about(err, "CNI_CONTAINERID", c.ContainerID)
	}
	if err := CheckIfName(c.IfName); err != nil {
		return about(err, "CNI_IFNAME", c.IfName)
	}
	return nil
}

// about adds to an error which variable it is about, and what that holds.
func about(err error, variable, value string) error {
	e := *AsError(err)
	text := fmt.Sprintf("%s is %q", variable, value)
	if e.Details != "" && e.Details != value {
		text = e.Details + "; " + text
	}
	e.Details = text
	return &e
}

// complete names the variables that are missing, all of them in one error and in
// the order of the reference. Set and empty is missing. DEL comes without a
// namespace when the container has gone first.
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

// override reads CNI_NETNS_OVERRIDE as the reference does: 1, or true in any case of
// letters; all else is false and no error.
func override(s string) bool { return s == "1" || strings.EqualFold(s, "true") }

// Environ returns the call as CNI_* variables: all six, also the empty ones,
// so that none is inherited, and CNI_NETNS_OVERRIDE if it is set.
// They go behind an inherited environment, in which the last of equal names counts.
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
