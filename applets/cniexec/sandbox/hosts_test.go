package sandbox

import (
	"net/netip"
	"testing"
)

// The process's own run comes first, then the runs on its networks, then the lines of the host's
// file without those of cni-exec.
func TestHostsText(t *testing.T) {
	addr := func(s ...string) (list []netip.Addr) {
		for _, a := range s {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	all := []runAddresses{
		{"far", map[string][]netip.Addr{"b": addr("10.2.0.2")}},
		{"near", map[string][]netip.Addr{"a": addr("10.1.0.3"), "b": addr("10.2.0.3")}},
		{"self", map[string][]netip.Addr{"a": addr("10.1.0.2", "fd00::2")}},
		{"none", nil},
	}
	tests := map[string]struct{ host, want string }{
		"no file": {"", "127.0.0.1\tlocalhost\n::1\tlocalhost\n"},
		"a file":  {"127.0.0.1 localhost box\n10.9.0.9\tgone # cni-exec run\n# end", "127.0.0.1 localhost box\n# end"},
	}
	const ours = "10.1.0.2\tself # cni-exec run\nfd00::2\tself # cni-exec run\n10.1.0.3\tnear # cni-exec run\n"
	for name, tt := range tests {
		if got := hostsText(all[2], all, tt.host); got != ours+tt.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, ours+tt.want)
		}
	}
}

func TestCheckRunName(t *testing.T) {
	for name, ok := range map[string]bool{
		"web": true, "web-1.example_x": true, "": false, ".": false, "a/b": false, "a b": false, "a\nb": false,
		"-a": false, // a flag after one without its value
		"0123456789012345678901234567890123456789012345678901234567890123":  true,
		"01234567890123456789012345678901234567890123456789012345678901234": false,
	} {
		if err := CheckRunName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
