package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
	"cnibox/rtnl"
	"cnibox/spec"
)

// tuningSysctls are the settings of one "sysctl" object, in its order.
// A map would lose the order and the duplicates.
type tuningSysctls []struct{ key, value string }

// UnmarshalJSON refuses a key that stands twice: the result would depend on
// which of the two counts.
// Values must be strings, "1" and not 1: what a number would be written as, nobody says.
func (s *tuningSysctls) UnmarshalJSON(b []byte) error {
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(b, &settings); err != nil || settings == nil {
		return err
	}
	// A map does not tell of two keys that are the same, nor of their order.
	seen := make(map[string]bool)
	d := json.NewDecoder(bytes.NewReader(b))
	d.Token() // the brace; b is an object
	for d.More() {
		token, _ := d.Token()
		key, _ := token.(string)
		var value string
		if d.Decode(&value) != nil {
			return fmt.Errorf("the value of %s is not a string", key)
		}
		if seen[key] {
			return fmt.Errorf("duplicated sysctl keys are not allowed: %s", key)
		}
		seen[key] = true
		*s = append(*s, struct{ key, value string }{key, value})
	}
	return nil
}

// A tuningSysctl is one setting.
// The embedded one has its path below /proc/sys.
type tuningSysctl struct {
	written string // the key as the configuration has it
	rtnl.Sysctl
}

// mergeSysctls returns the settings sorted by path, so that each ADD writes
// them in the same order: "all" stands before the names of interfaces. Those
// of args.cni replace those of the configuration.
// The reference writes them in the random order of a map, and crashes if the
// configuration has none of its own.
func mergeSysctls(own, args tuningSysctls, ifName string) ([]tuningSysctl, error) {
	merged, err := sysctlPaths(args, ifName)
	if err != nil {
		return nil, err
	}
	configured, err := sysctlPaths(own, ifName)
	if err != nil {
		return nil, err
	}
	for _, s := range configured {
		if !slices.ContainsFunc(merged, func(o tuningSysctl) bool { return o.Key == s.Key }) {
			merged = append(merged, s)
		}
	}
	// A few settings are sorted as fast so, and package slices would add 12 kB.
	for i := range merged {
		for j := i; j > 0 && merged[j].Key < merged[j-1].Key; j-- {
			merged[j], merged[j-1] = merged[j-1], merged[j]
		}
	}
	return merged, nil
}

// sysctlPaths refuses two keys that name the same setting.
func sysctlPaths(settings tuningSysctls, ifName string) ([]tuningSysctl, error) {
	var out []tuningSysctl
	for _, s := range settings {
		p, err := sysctlPath(s.key, ifName)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(out, func(o tuningSysctl) bool { return o.Key == p }); i >= 0 {
			return nil, fmt.Errorf("duplicated sysctl keys are not allowed: %s and %s are the same", out[i].written, s.key)
		}
		out = append(out, tuningSysctl{s.key, rtnl.Sysctl{Key: p, Value: s.value}})
	}
	return out, nil
}

// sysctlPath returns the path of a setting below /proc/sys. The first
// separator of the key decides, as in sysctl(8): if it is a slash the key is
// the path; if it is a dot, dots and slashes change places, so that a slash
// stands for a dot in the name of an interface. IFNAME is replaced after that,
// and may have dots.
// Errors are of keys that leave net or are none. The reference changes every dot, so it
// cannot name an interface like eth0.5 in a key.
func sysctlPath(key, ifName string) (string, error) {
	invalid := spec.Errorf(spec.CodeConfig, "invalid net sysctl key: %q", key).WithDetails(`a key of "sysctl" must begin with net. or net/`).AtKey("sysctl")
	p := key
	if i := strings.IndexAny(p, "./"); i >= 0 && p[i] == '.' {
		p = strings.Map(func(c rune) rune {
			switch c {
			case '.':
				return '/'
			case '/':
				return '.'
			}
			return c
		}, p)
	}
	for _, part := range strings.Split(p, "/") {
		if part == "." || part == ".." {
			return "", invalid
		}
	}
	p = path.Clean(strings.TrimLeft(strings.Replace(p, "IFNAME", ifName, 1), "/"))
	if !strings.HasPrefix(p, "net/") || strings.ContainsFunc(p, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return "", invalid
	}
	return p, nil
}

// longestAllowlist is the most bytes that an allowlist may have; more is an error.
const longestAllowlist = 1 << 20

// checkAllowed refuses settings that no line of the allowlist matches; without
// such a file all are allowed. It is matched with the key as written, which
// the reference does too. A line that is no regular expression allows nothing.
// The error has code 7 and the reference's words; an empty file allows nothing.
func checkAllowed(file string, settings []tuningSysctl) error {
	if len(settings) == 0 {
		return nil
	}
	text, err := disk.Read(file, 0, longestAllowlist)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "sysctl allowlist: %w", err)
	}
	var allowed []*regexp.Regexp
	var unread error
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			unread = errors.Join(unread, fmt.Errorf("%s:%d: cannot read %q: %w", file, i+1, line, err))
			continue
		}
		allowed = append(allowed, re)
	}
	for _, s := range settings {
		if slices.ContainsFunc(allowed, func(re *regexp.Regexp) bool { return re.MatchString(s.written) }) {
			continue
		}
		e := spec.Errorf(spec.CodeConfig, "Sysctl %s is not allowed: no line of %s matches it", s.written, file)
		if unread != nil {
			return e.WithDetails("%v", unread)
		}
		return e
	}
	return nil
}

// writeSysctls writes the settings and returns what they were before, last
// first, as far as it came. Settings that cannot be read, as those that flush
// a table, have no former value.
// It runs on a thread in the namespace, as /proc/sys/net is the reader's own.
func writeSysctls(ns *rtnl.NS, settings []tuningSysctl) (before []rtnl.Sysctl, err error) {
	if len(settings) == 0 {
		return nil, nil
	}
	err = ns.Do(func() error {
		for _, s := range settings {
			old, err := ns.Sysctl(s.Key)
			if err != nil && !rtnl.Unreadable(err) {
				return s.refused(err)
			}
			if err == nil {
				before = slices.Insert(before, 0, rtnl.Sysctl{Key: s.Key, Value: old})
			}
			if err := ns.SetSysctls(s.Sysctl); err != nil {
				return s.refused(err)
			}
		}
		return nil
	})
	return before, err
}

// refused gives an error that the configuration explains its code, and says so.
func (s tuningSysctl) refused(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return spec.Errorf(spec.CodeConfig, "%w: %s is misspelled, of a module that is not loaded, or the whole host's, which no container has", err, s.written)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return spec.Errorf(spec.CodeConfig, "%w: the kernel does not take this value for %s", err, s.written)
	}
	return err
}

// checkSysctls compares each setting with the live value, field by field.
// The kernel prints fields with tabs, whatever stood between them when they were
// written; the reference compares bytes, and such a CHECK never passes.
func checkSysctls(ns *rtnl.NS, settings []tuningSysctl) error {
	if len(settings) == 0 {
		return nil
	}
	return ns.Do(func() error {
		for _, s := range settings {
			now, err := ns.Sysctl(s.Key)
			if errors.Is(err, os.ErrPermission) {
				continue // can be written, only
			}
			if err != nil {
				return spec.Errorf(spec.CodeCheck, "%w", err)
			}
			if !rtnl.SameSysctl(now, s.Value) {
				return tuningDiffers("sysctl "+s.written, s.Value, now)
			}
		}
		return nil
	})
}
