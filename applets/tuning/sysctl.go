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
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

// sysctls are the settings of one "sysctl" object, in its order.
type sysctls []struct{ key, value string }

// UnmarshalJSON refuses duplicate keys, and values that are not strings.
func (s *sysctls) UnmarshalJSON(b []byte) error {
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(b, &settings); err != nil || settings == nil {
		return err
	}
	// a map would lose duplicates and the order
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

// A sysctl is one setting. The embedded Sysctl has the path below /proc/sys.
type sysctl struct {
	written string // the key as the configuration has it
	netns.Sysctl
}

// mergeSysctls returns the settings sorted by path, so that each ADD writes them in the same order,
// "all" before names of interfaces. Settings of args.cni replace those of the configuration.
func mergeSysctls(own, args sysctls, ifName string) ([]sysctl, error) {
	merged, err := sysctlPaths(args, ifName)
	if err != nil {
		return nil, err
	}
	configured, err := sysctlPaths(own, ifName)
	if err != nil {
		return nil, err
	}
	replaced := make(map[string]bool, len(merged))
	for _, s := range merged {
		replaced[s.Key] = true
	}
	for _, s := range configured {
		if !replaced[s.Key] {
			merged = append(merged, s)
		}
	}
	slices.SortFunc(merged, func(a, b sysctl) int { return strings.Compare(a.Key, b.Key) })
	return merged, nil
}

// sysctlPaths converts keys to paths. It refuses two keys for the same setting.
func sysctlPaths(settings sysctls, ifName string) ([]sysctl, error) {
	var out []sysctl
	written := make(map[string]string, len(settings)) // keys, by their path
	for _, s := range settings {
		p, err := sysctlPath(s.key, ifName)
		if err != nil {
			return nil, err
		}
		if other, ok := written[p]; ok {
			return nil, fmt.Errorf("duplicated sysctl keys are not allowed: %s and %s are the same", other, s.key)
		}
		written[p] = s.key
		out = append(out, sysctl{s.key, netns.Sysctl{Key: p, Value: s.value}})
	}
	return out, nil
}

// sysctlPath returns the path of a setting below /proc/sys. As in sysctl(8) the first separator of
// the key decides. After a slash, the key is the path. After a dot, dots and slashes change places,
// so that a slash stands for a dot in the name of an interface. IFNAME is replaced last, and may
// contain dots. A key outside net, or one that is not a path, is an error.
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
	for part := range strings.SplitSeq(p, "/") {
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

// longestAllowlist is the maximum length of an allowlist in bytes; a longer one is an error.
const longestAllowlist = 1 << 20

// checkAllowed refuses settings that no line of the allowlist matches. Without the file all are
// allowed. Like the reference it matches the key as written. A line that is not a regular
// expression allows nothing, and neither does an empty file. The error has code 7 and begins with
// the phrase of the reference.
func checkAllowed(file string, settings []sysctl) error {
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

// writeSysctls writes the settings and returns the former values of those written, in reverse
// order. Settings that cannot be read, such as those that flush a table, have no former value. forms
// has the kernel's form of each value, by [sysctl.assignment], that the kernel has not kept as it was written.
// It runs on a thread in the namespace, since /proc/sys/net depends on the thread.
func writeSysctls(ns *netns.NS, settings []sysctl) (before []netns.Sysctl, forms map[string]string, err error) {
	if len(settings) == 0 {
		return nil, nil, nil
	}
	forms = make(map[string]string)
	err = ns.Do(func() error {
		here := netns.Host() // of this thread
		for _, s := range settings {
			old, err := here.Sysctl(s.Key)
			if err != nil && !netns.Unreadable(err) {
				return s.explain(err)
			}
			if err == nil {
				before = append(before, netns.Sysctl{Key: s.Key, Value: old})
			}
			if err == nil && netns.SameSysctl(old, s.Value) {
				continue
			}
			s.Differs = true
			if err := here.SetSysctls(s.Sysctl); err != nil {
				return s.explain(err)
			}
			now, err := here.Sysctl(s.Key)
			if err != nil && !netns.Unreadable(err) {
				return s.explain(err)
			}
			if err == nil && !netns.SameSysctl(now, s.Value) {
				forms[s.assignment()] = now
			}
		}
		return nil
	})
	slices.Reverse(before)
	return before, forms, err
}

// assignment names key and value, as sysctl(8) takes them.
func (s sysctl) assignment() string { return s.Key + "=" + s.Value }

// explain explains an error that the configuration causes.
func (s sysctl) explain(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return spec.Errorf(spec.CodeConfig, "%w: %s is misspelled, of a module that is not loaded, or the whole host's, which no container has", err, s.written)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return spec.Errorf(spec.CodeConfig, "%w: the kernel does not take this value for %s", err, s.written)
	}
	return err
}

// checkSysctls compares each setting with the live value, and asks for the forms that the kernel gave
// them at ADD if one is not as it is configured.
func checkSysctls(ns *netns.NS, settings []sysctl, forms func() map[string]string) error {
	if len(settings) == 0 {
		return nil
	}
	return ns.Do(func() error {
		for _, s := range settings {
			now, err := netns.Host().Sysctl(s.Key) // of this thread
			if errors.Is(err, os.ErrPermission) {
				continue // can only be written
			}
			if err != nil {
				return spec.Errorf(spec.CodeCheck, "%w", err)
			}
			if netns.SameSysctl(now, s.Value) {
				continue
			}
			form, recorded := forms()[s.assignment()]
			if recorded && now == form || !recorded && s.means(now) {
				continue
			}
			return differs("sysctl "+s.written, s.Value, now)
		}
		return nil
	})
}

// means reports whether a live value is another spelling of the configured one. It is for attachments
// whose record has no form of the kernel's: of the reference, or of an earlier version. Of masks and
// lists of ports the kernel has a form of its own (proc_do_large_bitmap, kernel/sysctl.c); all other
// numbers it reads as C has them.
func (s sysctl) means(now string) bool {
	normal := normalNumbers
	switch {
	case strings.HasSuffix(s.Key, "_ports"):
		normal = normalPorts
	case strings.HasSuffix(s.Key, "_mask"), strings.HasSuffix(s.Key, "_bitmap"):
		normal = normalMask
	}
	return normal(s.Value) == normal(now)
}

// normalNumbers returns the fields of a value, with numbers in decimal.
func normalNumbers(value string) string {
	fields := strings.Fields(value)
	for i, f := range fields {
		if n, err := strconv.ParseInt(f, 0, 64); err == nil {
			fields[i] = strconv.FormatInt(n, 10)
		}
	}
	return strings.Join(fields, " ")
}

// normalMask returns a mask in hexadecimal without the commas between its words.
func normalMask(value string) string {
	return strings.TrimLeft(strings.ToLower(strings.ReplaceAll(value, ",", "")), "0x ")
}

// normalPorts returns a list of ports and ranges of ports as a set of bits; what is none stays as it is.
func normalPorts(value string) string {
	var set [1 << 13]byte
	for part := range strings.SplitSeq(value, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, err := strconv.ParseUint(low, 0, 16)
		to, err2 := strconv.ParseUint(high, 0, 16)
		if err != nil || err2 != nil {
			return value
		}
		for ; from <= to; from++ {
			set[from/8] |= 1 << (from % 8)
		}
	}
	return string(set[:])
}
