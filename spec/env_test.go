package spec

import (
	"slices"
	"strings"
	"testing"
)

// Codes and messages are those of the reference, as observed.
func TestReadCall(t *testing.T) {
	none := []string{"CNI_CONTAINERID", "", "CNI_NETNS", "", "CNI_IFNAME", "", "CNI_PATH", ""}
	tests := map[string]struct {
		verb  Verb
		pairs []string
		code  int
		text  string
	}{
		"complete":             {verb: Add},
		"no command":           {verb: "", pairs: []string{"CNI_IFNAME", "a/b"}},
		"version with dummies": {verb: GetVersion, pairs: []string{"CNI_IFNAME", "a/b", "CNI_CONTAINERID", ""}},
		"unknown command":      {verb: "NOPE", pairs: none},
		"nothing else, and CNI_PATH is optional": {Add, none, CodeEnv,
			"[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]"},
		"bad container ID before what is missing": {Add, append(slices.Clone(none), "CNI_CONTAINERID", "%x"), CodeEnv,
			`containerID; CNI_CONTAINERID is "%x"`},
		"bad name before what is missing": {Add, append(slices.Clone(none), "CNI_IFNAME", "a/b"), CodeEnv,
			"whitespace"},
		"16 bytes":            {Add, []string{"CNI_IFNAME", "abcdefghijklmnop"}, CodeEnv, "interface name is too long; interface name should be less than 16 characters"},
		"dots":                {Del, []string{"CNI_IFNAME", ".."}, CodeEnv, ". or .."},
		"DEL without netns":   {verb: Del, pairs: []string{"CNI_NETNS", ""}},
		"DEL without path":    {verb: Del, pairs: []string{"CNI_PATH", ""}},
		"CHECK without netns": {Check, []string{"CNI_NETNS", ""}, CodeEnv, "[CNI_NETNS]"},
		"GET without netns":   {Get, []string{"CNI_NETNS", ""}, CodeEnv, "[CNI_NETNS]"},
		"GC needs no names":   {verb: GC, pairs: none},
		"STATUS needs no names, and looks at none": {verb: Status, pairs: []string{"CNI_CONTAINERID", "../x"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ReadCall(env(tt.verb, tt.pairs...))
			wantError(t, err, tt.code, tt.text)
		})
	}
}

func TestNetNSOverride(t *testing.T) {
	for text, want := range map[string]bool{"": false, "0": false, "yes": false, "1": true, "true": true, "TRUE": true} {
		c, err := ReadCall(env(Add, "CNI_NETNS_OVERRIDE", text))
		if err != nil || c.NetNSOverride != want {
			t.Errorf("%q: got %v, %v, want %v", text, c.NetNSOverride, err, want)
		}
	}
}

func TestEnviron(t *testing.T) {
	c, _ := ReadCall(env(Del, "CNI_NETNS", "", "CNI_ARGS", "A=b=c;"))
	want := "CNI_COMMAND=DEL CNI_CONTAINERID=c1 CNI_NETNS= CNI_IFNAME=eth0 CNI_ARGS=A=b=c; CNI_PATH=/opt/cni/bin"
	if got := strings.Join(c.Environ(), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c.NetNSOverride = true
	again, err := ReadCall(func(key string) string {
		for _, pair := range c.Environ() {
			if k, v, _ := strings.Cut(pair, "="); k == key {
				return v
			}
		}
		return ""
	})
	if err != nil || again != c {
		t.Errorf("read back: got %+v, %v\nwant %+v", again, err, c)
	}
}

func TestPathDirectories(t *testing.T) {
	if got := directories(":/a::/b:"); !slices.Equal(got, []string{"/a", "/b"}) {
		t.Errorf("got %q", got)
	}
	if got := directories(""); len(got) != 0 {
		t.Errorf("empty path: got %q", got)
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 300)
	tests := []struct {
		what, name string
		check      func(string) error
		code       int
		text       string
	}{
		{"id", "", CheckContainerID, CodeUnknown, "missing containerID"},
		{"id", "0a_.-Z", CheckContainerID, 0, ""},
		{"id", "_a", CheckContainerID, CodeEnv, "containerID; _a"},
		{"id", "../x", CheckContainerID, CodeEnv, "../x"},
		{"id", "a\x00", CheckContainerID, CodeEnv, "invalid characters"},
		{"id", long[:255], CheckContainerID, 0, ""},
		{"id", long, CheckContainerID, CodeEnv, "containerID is too long"},
		{"network", "", CheckNetworkName, CodeConfig, "network name"},
		{"network", "-x", CheckNetworkName, CodeConfig, "; -x"},
		{"network", "a/b", CheckNetworkName, CodeConfig, "a/b"},
		{"network", "netz-ä", CheckNetworkName, CodeConfig, "invalid characters"},
		{"network", long[:200], CheckNetworkName, 0, ""},
		{"network", long, CheckNetworkName, CodeConfig, "network name is too long"},
		{"interface", "", CheckIfName, CodeEnv, "is empty"},
		{"interface", "eth0.5@x", CheckIfName, 0, ""},
		{"interface", "abcdefghijklmno", CheckIfName, 0, ""},
		{"interface", "abcdefghijklmnop", CheckIfName, CodeEnv, "too long"},
		{"link", strings.Repeat("a", 127), CheckLinkName, 0, ""},
		{"link", strings.Repeat("a", 128), CheckLinkName, CodeEnv, "too long; interface name should be less than 128 characters"},
		{"interface", ".", CheckIfName, CodeEnv, ". or .."},
		{"interface", "a:b", CheckIfName, CodeEnv, "contains / or :"},
		{"interface", "a\u2003b", CheckIfName, CodeEnv, "whitespace"},
		{"interface", "eth%d", CheckIfName, CodeEnv, "contains %"},
		{"interface", "all", CheckIfName, CodeEnv, "is all or default"},
		{"interface", "default", CheckIfName, CodeEnv, "is all or default"},
		{"interface", "a\x01", CheckIfName, CodeEnv, "control characters"},
		{"interface", "a\xff", CheckIfName, CodeEnv, "not UTF-8"},
		{"type", "", CheckType, CodeConfig, "missing plugin type"},
		{"type", "buildkit-cni-bridge", CheckType, 0, ""},
		{"type", "../bridge", CheckType, CodeConfig, `invalid plugin type "../bridge"`},
		{"type", `a\b`, CheckType, CodeConfig, "invalid plugin type"},
		{"type", "..", CheckType, CodeConfig, "invalid plugin type"},
		{"type", "a\x00b", CheckType, CodeConfig, "invalid plugin type"},
		{"type", long, CheckType, CodeConfig, "invalid plugin type"},
	}
	for _, tt := range tests {
		t.Run(tt.what+" "+tt.name, func(t *testing.T) { wantError(t, tt.check(tt.name), tt.code, tt.text) })
	}
}
