package nft

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

func TestCheckChainName(t *testing.T) {
	for name, ok := range map[string]bool{
		"CNI-ADMIN": true, "MY-ADMIN_1.x": true, "nomad-admin": true, "ACCEPT": true, "_": true, "..": true, "a-": true,
		strings.Repeat("A", 28): true, strings.Repeat("A", 29): false,
		"": false, ".": false, "-a": false, "1a": false, "a b": false, "a/b": false, `a"b`: false, "ä": false,
		"accept": false, "ip": false, "last": false, "auto-merge": false, "init-ack": false, "sack0": false, "to": false,
	} {
		if err := CheckChainName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Whatever name is accepted, nft can load what it lists: words like keywords in every form, and
// each word that the installed nft has for a token.
func TestKernelChainNamesLoad(t *testing.T) {
	names := []string{"_", "..", ".a", "a-", "a-b.c_d", "A1", "e8", "x0", "a.1", strings.Repeat("Z", 28)}
	for _, word := range append(strings.Fields(keywords), tokens(t)...) {
		names = append(names, word, strings.ToUpper(word), word+"-1", "_"+word, word+".", word[:1]+word)
	}
	accepted := map[string]bool{}
	for _, name := range names {
		if CheckChainName(name) == nil && name != filterChain && name != filterHook {
			accepted[name] = true
		}
	}
	if len(accepted) < 1000 {
		t.Errorf("%d names were accepted, want 1000 and more", len(accepted))
	}
	// A few hundred at a time: nft sends a file in one message, which has to fit the send buffer of
	// an ordinary user.
	for part := range slices.Chunk(slices.Sorted(maps.Keys(accepted)), 50) {
		ns, ip := kerneltest.NS(t), netip.MustParseAddr("10.0.0.1")
		table := Open(ns, WithLock(filepath.Join(t.TempDir(), "lock")))
		err := table.Update(context.Background(), func(x *Tx) error {
			for _, name := range part {
				x.Allow(spec.Attachment{Network: "net1", ContainerID: name, IfName: "eth0"}, ip, name)
				ip = ip.Next()
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		list := nftIn(t, ns, "", "list", "ruleset")
		if n := strings.Count(list, "\tchain "); n < 2*len(part) {
			t.Errorf("%d names were accepted, %d chains listed", len(part), n)
		}
		nftIn(t, kerneltest.NS(t), list, "-f", "-")
	}
}

// tokens are the words that the parser of the installed nft has in its table of names.
func tokens(t *testing.T) (words []string) {
	t.Helper()
	files, _ := filepath.Glob("/usr/lib/*/libnftables.so.1")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"([a-z][a-z0-9-]*)"\x00`).FindAllSubmatch(b, -1) {
			words = append(words, string(m[1]))
		}
	}
	return words
}

func nftIn(t *testing.T, ns *rtnl.NS, stdin string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("SKIPPED: nft is not installed")
	}
	var out []byte
	err = ns.Do(func() (err error) {
		cmd := exec.Command(path, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("nft %q: %v\n%.2000s", args, err, out)
	}
	return string(out)
}
