package spec

import (
	"sort"
	"strings"
)

// Args are the pairs of CNI_ARGS; of a repeated key the last value counts.
// Keys are case sensitive, unlike those of configurations.
type Args map[string]string

// ParseArgs reads K=V;K=V. It splits each pair at its first "=" and skips empty
// parts; a part without "=" is an error with code 4.
//
// Values with "=" are in use (job names, JSON), and runtimes append a ";", though the reference
// plugins reject both.
func ParseArgs(s string) (Args, error) {
	args := Args{}
	for part := range strings.SplitSeq(s, ";") {
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if !ok || key == "" {
			return nil, Errorf(CodeEnv, "ARGS: invalid pair %q", part)
		}
		args[key] = value
	}
	if _, err := args.ignoreUnknown(); err != nil {
		return nil, err
	}
	return args, nil
}

// ignoreUnknown parses the key IgnoreUnknown: 1, 0, true or false in any letter case; absent is
// false, any other value is an error of code 4.
func (a Args) ignoreUnknown() (bool, error) {
	text, ok := a["IgnoreUnknown"]
	switch strings.ToLower(text) {
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	if ok {
		return false, Errorf(CodeEnv, "ARGS: IgnoreUnknown %q is neither true nor false", text)
	}
	return false, nil
}

// unknown returns the sorted keys that are not conventions of the reference plugins (IP, MAC,
// GATEWAY, IgnoreUnknown), of Kubernetes' runtimes (K8S_*) or of tc-redirect-tap, and not strings of
// the configurations.
func (a Args) unknown(confs string) []string {
	var keys []string
	for k := range a {
		switch k {
		case "IP", "MAC", "GATEWAY", "IgnoreUnknown":
			continue
		}
		if !strings.HasPrefix(k, "K8S_") && !strings.HasPrefix(k, "TC_REDIRECT_TAP_") && !strings.Contains(confs, `"`+k+`"`) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	return keys
}

// WarnUnknownArgs warns once about the keys of CNI_ARGS that no plugin of a call knows, unless
// IgnoreUnknown is set. The function that reads the environment calls it; a delegate or the next
// plugin of a chain would only repeat the warning. A configuration that has the key as a string
// (fromArg of dhcp) uses it, and an external plugin may know any key.
//
// As in the reference plugins, such a key is not an error: the specification's own example has keys
// that no plugin knows.
func WarnUnknownArgs(plugins ...*Request) {
	if len(plugins) == 0 {
		return
	}
	first := plugins[0]
	if quiet, _ := first.args.ignoreUnknown(); quiet || len(first.args.unknown("")) == 0 { // checked by ParseArgs
		return
	}
	confs := ""
	for _, r := range plugins {
		if r.external(r.Net.Type) || r.external(r.Net.IPAM.Type) {
			return
		}
		confs += string(r.conf)
	}
	if keys := first.args.unknown(confs); len(keys) > 0 {
		first.Warn("ARGS: unknown args %q ignored", keys)
	}
}

// external reports whether a plugin is not in this program.
func (r *Request) external(plugin string) bool {
	verbs, err := r.Invoker.Find(plugin)
	return err == nil && verbs == nil
}
