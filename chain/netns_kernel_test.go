package chain_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// A new namespace may have the path, device and inode of one that has ended, since Linux 6.12
// reuses inodes. The attachment is not live: DEL passes no namespace, and ADD is not refused.
func TestKernelReusedNamespaceID(t *testing.T) {
	w := newFixture(t, "rec")
	l := w.parse(cachedList)
	ns := kerneltest.NS(t)
	kerneltest.Cookie(t, ns)
	target := chain.RuntimeConf{ContainerID: "c", IfName: "eth0", NetNS: kerneltest.NSPath(t, ns)}
	if _, err := w.Add(t.Context(), l, target); err != nil {
		t.Fatal(err)
	}
	attachment := spec.Attachment{Network: l.Name, ContainerID: "c", IfName: "eth0"}
	entry := func() *chain.Entry {
		t.Helper()
		e, err := w.Cache.Lookup(attachment)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := entry()
	if !e.Live() || e.Gone() {
		t.Fatalf("alive %t, gone %t of one that was attached just now: %+v", e.Live(), e.Gone(), e)
	}
	if _, err := w.Add(t.Context(), l, target); code(err) != spec.CodeBusy {
		t.Errorf("second ADD: %v, want code %d", err, spec.CodeBusy)
	}
	text, err := os.ReadFile(e.File())
	if err != nil {
		t.Fatal(err)
	}
	earlier := regexp.MustCompile(`"cniboxNetNSCookie":\d+`).ReplaceAll(text, []byte(`"cniboxNetNSCookie":`+strconv.FormatUint(e.NetNSCookie-1, 10)))
	if err := os.WriteFile(e.File(), earlier, 0o600); err != nil {
		t.Fatal(err)
	}
	if e = entry(); e.Live() || !e.Gone() {
		t.Errorf("alive %t, gone %t of one whose namespace was another", e.Live(), e.Gone())
	}
	w.records()
	if _, err := w.Add(t.Context(), l, target); err != nil {
		t.Errorf("ADD in the new namespace: %v", err)
	}
	calls := w.wantCalls("DEL rec, ADD rec")
	if len(calls) == 2 && (calls[0].NetNS != "" || calls[1].NetNS != target.NetNS) {
		t.Errorf("DEL of the old one had namespace %q, ADD %q", calls[0].NetNS, calls[1].NetNS)
	}
}
