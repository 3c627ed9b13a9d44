package defaultnet

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/chain"
)

func TestConf(t *testing.T) {
	s := subnets{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}
	for _, v6 := range []bool{false, true} {
		l, err := chain.Parse(s.conf(v6, "/data", "/etc/resolv.conf"))
		if err != nil || l.Name != Name || len(l.Plugins) != 3 {
			t.Fatalf("got %+v, %v", l, err)
		}
		doc, _ := l.Effective()
		if got := bytes.Contains(doc, []byte("fd00:1::/64")); got != v6 {
			t.Errorf("IPv6 wanted %v, there %v: %s", v6, got, doc)
		}
		for i, want := range []string{"bridge", "portmap", "tuning"} { // a script runs them
			if got := l.Plugins[i].Type; got != want {
				t.Errorf("plugin %d: got %s, want %s", i, got, want)
			}
		}
	}
}

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	for text, ok := range map[string]bool{
		`{"ipv4":"10.1.0.0/24","ipv6":"fd00:1::/64"}`: true,
		`{"ipv4":"10.1.0.0/24"}`:                      false,
		`{"ipv4":"fd00:1::/64","ipv6":"10.1.0.0/24"}`: false,
		``: false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := read(file); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	link := file + "2"
	os.Symlink(file, link)
	if _, err := read(link); err == nil {
		t.Error("a symbolic link is followed")
	}
}
