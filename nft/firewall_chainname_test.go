package nft

import (
	"context"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/spec"
)

func TestCheckChainName(t *testing.T) {
	for name, ok := range map[string]bool{
		"CNI-ADMIN": true, "MY-ADMIN_1": true, "nomad-admin": true, "ACCEPT": true, "_": true, "a-": true,
		strings.Repeat("A", 28): true, strings.Repeat("A", 29): false,
		"": false, ".": false, "a.b": false, "-a": false, "1a": false, "a b": false, "a/b": false, `a"b`: false, "ä": false,
	} {
		if err := CheckChainName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// nft can load its own listing of chains whose names have every permitted character.
func TestKernelChainNamesLoad(t *testing.T) {
	kerneltest.OneKernel(t)
	names := []string{"_", "a-", "a-b_c", "A1", "e8", "x0", "CNI-ADMIN", strings.Repeat("Z", 28)}
	ns, ip := kerneltest.NS(t), netip.MustParseAddr("10.0.0.1")
	table := Open(ns, WithLock(filepath.Join(t.TempDir(), "lock")))
	err := table.Update(context.Background(), func(x *Tx) error {
		for _, name := range names {
			x.Allow(spec.Attachment{Network: "net1", ContainerID: name, IfName: "eth0"}, ip, name)
			ip = ip.Next()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	list := nftIn(t, ns, "", "list", "ruleset")
	if n := strings.Count(list, "\tchain "); n < 2*len(names) {
		t.Errorf("%d names were accepted, %d chains listed", len(names), n)
	}
	nftIn(t, kerneltest.NS(t), list, "-f", "-")
}

func nftIn(t *testing.T, ns *netns.NS, stdin string, args ...string) string {
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
