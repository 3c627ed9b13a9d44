package spec

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// A Version is a version of the CNI specification; the zero value is invalid.
// Versions compare with == and [Version.AtLeast].
type Version struct{ Major, Minor, Patch int }

// The versions of the specification, oldest first.
var (
	// 0.1.0 and 0.2.0 have one address of each family and no interfaces.
	V010 = Version{0, 1, 0}
	V020 = Version{0, 2, 0}
	// From here on lists of interfaces and addresses, and configuration lists.
	V030 = Version{0, 3, 0}
	V031 = Version{0, 3, 1}
	// CHECK, and prevResult at DEL.
	V040 = Version{0, 4, 0}
	// No version of addresses ("4", "6") any more.
	V100 = Version{1, 0, 0}
	// GC and STATUS, attributes of routes, and the MTU of interfaces.
	V110 = Version{1, 1, 0}

	// Newest is the version of VERSION's answer if no version is requested.
	Newest = V110
)

// versions is in order, which [Versions] relies on.
var versions = [...]Version{V010, V020, V030, V031, V040, V100, V110}

// Versions returns all versions from the given one on, oldest first; none if it is newer than all
// supported versions. The zero Version selects all. All callers share the array, and must not
// change it.
func Versions(since Version) []Version {
	for i, v := range versions {
		if v.AtLeast(since) {
			return versions[i:]
		}
	}
	return nil
}

// ParseVersion parses one to three decimal parts; missing parts are 0 and the empty string is
// 0.1.0, as the specification says about a configuration without a version.
//
// A number may have 16 bits and leading zeros, as in the reference. The result need not be an
// existing version: see [Plugin.Do]. A sign, a blank, a "v" or a suffix as in "0.4.0-dev" is an
// error.
func ParseVersion(s string) (Version, error) {
	if s == "" {
		return V010, nil
	}
	parts := strings.Split(s, ".")
	if len(parts) > 3 {
		return Version{}, fmt.Errorf("version %q has more than three parts", s)
	}
	var n [3]int
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return Version{}, fmt.Errorf("version %q: part %q is not a number", s, p)
		}
		n[i] = int(v)
	}
	return Version{n[0], n[1], n[2]}, nil
}

// String returns the three parts, as the specification writes them.
func (v Version) String() string {
	return strconv.Itoa(v.Major) + "." + strconv.Itoa(v.Minor) + "." + strconv.Itoa(v.Patch)
}

// AtLeast reports whether v is o or newer.
func (v Version) AtLeast(o Version) bool {
	switch {
	case v.Major != o.Major:
		return v.Major > o.Major
	case v.Minor != o.Minor:
		return v.Minor > o.Minor
	}
	return v.Patch >= o.Patch
}

// NeedsAddress reports whether the result of a built-in plugin in version v must have an address:
// below 0.3.0 it has nothing else.
func (v Version) NeedsAddress() bool { return !v.AtLeast(V030) }

// isSupported reports whether the text is exactly a supported version from since on. As in the
// reference, "1.0" is not 1.0.0.
func isSupported(text string, since Version) bool {
	for _, v := range Versions(since) {
		if v.String() == text {
			return true
		}
	}
	return false
}

// ConfVersion returns the version of a configuration, even if other keys are invalid; the zero
// Version if it cannot be read.
func ConfVersion(conf []byte) Version {
	r := &Request{}
	if unmarshalObject(conf, &r.top) != nil || r.readVersion() != nil {
		return Version{}
	}
	return r.Net.Version
}

// VersionAnswer returns what VERSION prints for a plugin that supports all versions from since on:
// one line. It echoes the cniVersion of stdin if the plugin supports that, else it has the newest;
// bad input is not an error.
//
// The specification requires the echo; runtimes choose by supportedVersions.
func VersionAnswer(stdin []byte, since Version) []byte {
	var conf struct{ CNIVersion string }
	if err := json.Unmarshal(stdin, &conf); err != nil || !isSupported(conf.CNIVersion, since) {
		conf.CNIVersion = Newest.String()
	}
	var served []string
	for _, v := range Versions(since) {
		served = append(served, v.String())
	}
	return []byte(`{"cniVersion":"` + conf.CNIVersion + `","supportedVersions":["` + strings.Join(served, `","`) + "\"]}\n")
}
