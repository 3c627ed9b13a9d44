package sandbox

import (
	"testing"

	"github.com/cnibox/cnibox/spec"
)

func TestResolvText(t *testing.T) {
	got := resolvText(spec.DNS{
		Nameservers: []string{"10.0.0.1", "::1\nnameserver 6.6.6.6"}, Domain: "d", Search: []string{"a", "b"}, Options: []string{"ndots:5"},
	})
	want := "nameserver 10.0.0.1\nnameserver ::1 nameserver 6.6.6.6\ndomain d\nsearch a b\noptions ndots:5\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for conf, ok := range map[string]bool{
		"nameserver 127.0.0.53\n": false, "# nameserver 1.1.1.1\n": false, "nameserver 127.0.0.1\nnameserver 9.9.9.9": true, "": false,
	} {
		if Reachable(conf) != ok {
			t.Errorf("%q: Reachable is %v", conf, !ok)
		}
	}
}
