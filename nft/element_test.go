package nft

import (
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/nftables"

	"github.com/cnibox/cnibox/spec"
)

// A change of the base ruleset requires a new version.
func TestBaseVersion(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("SKIPPED: the digest is of the messages of a little-endian machine")
	}
	all := sha512.New()
	for _, table := range []byte{inet, bridge} {
		var b batch
		b.ensure(table)
		ms, err := b.Messages()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			fmt.Fprintln(all, m.Header.Type, m.Header.Flags, hex.EncodeToString(m.Data))
		}
	}
	const want = "base ruleset 5: db0d56448d503c8a"
	if got := baseVersion + ": " + hex.EncodeToString(all.Sum(nil)[:8]); got != want {
		t.Errorf("got %q, want %q: after a change raise the version, then write it here", got, want)
	}
}

func TestComment(t *testing.T) {
	o := spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	long := spec.Attachment{Network: strings.Repeat("n", 300), ContainerID: "c", IfName: "eth0"}
	for name, tt := range map[string]struct {
		comment, key string
		names        spec.Attachment
	}{
		"ours":      {comment(o), o.Key(), o},
		"key alone": {o.Key(), o.Key(), spec.Attachment{}},
		"cut":       {comment(long), long.Key(), spec.Attachment{Network: strings.Repeat("n", 36) + "~67efac9d3255a5284e7d28e12fdff6b4516b244eb6ee1bd2b9387e2918f07450"}},
		"empty":     {"", "", spec.Attachment{}},
		"short":     {"hello", "", spec.Attachment{}},
		"others'":   {strings.Repeat("x", 30), "", spec.Attachment{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ownerKey(tt.comment); got != tt.key {
				t.Errorf("key %q, want %q", got, tt.key)
			}
			if got := ownerNames(tt.comment); got != tt.names {
				t.Errorf("names %v, want %v", got, tt.names)
			}
			if len(tt.comment) > longest {
				t.Errorf("%d bytes", len(tt.comment))
			}
		})
	}
	if c := comment(spec.Attachment{Network: "a\"b\n\x7f"}); strings.ContainsAny(c, "\"\n\x7f") {
		t.Errorf("comment %q", c)
	}
}

// The names that the reference derives, as observed.
func TestReferenceNames(t *testing.T) {
	at := func(network, id string) spec.Attachment {
		return spec.Attachment{Network: network, ContainerID: id, IfName: "eth0"}
	}
	for got, want := range map[string]string{
		oldChain(oldMasqPrefix, at("test", "1234")):                              "CNI-2bbe0c48b91a7d1b8a6753a8",
		oldChain(oldMasqPrefix, at("testalongnamethatdoesnotmakesense", "1234")): "CNI-374f33fe84ab0ed84dcdebe3",
		oldChain("CNI-PREFIX-", at("test", "1234")):                              "CNI-PREFIX-2bbe0c48b91a7d1b8",
		oldChain(oldDNATPrefix, at("net1", "p1")):                                "CNI-DN-c37c1b09cd1a8a00aefa6",
		oldMasqComment(at("net1", "cid1")):                                       "8e48f37d5de60467-0b65a318f52e521b",
		oldMasqComment(at("netp", "cid1")):                                       "a82b5f4c212dc8cf-0b65a318f52e521b",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// FuzzDecode decodes any bytes as elements, comments, rules and flows without a panic.
func FuzzDecode(f *testing.F) {
	var b batch
	_ = b.Add(step{}).SetAddElements(anyPorts.condDispatch.v4.ref(), []nftables.SetElement{(&Element{key: make([]byte, 8), chain: "c", comment: "o"}).lib()})
	_ = b.Add(step{}).SetAddElements(hostPorts.dnat.v6.ref(), []nftables.SetElement{(&Element{key: make([]byte, 24), data: make([]byte, 20), comment: "o"}).lib()})
	ms, err := b.Messages()
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range ms[1:3] {
		f.Add(m.Data[headerLen:])
	}
	for _, c := range chainsOf(inet) {
		for _, r := range c.rules {
			f.Add(r.list())
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		decodeElements(masqSet.v4, data, func([]byte) bool { return true }, func(Element) {})
		for _, set := range sets() {
			decodeElements(set, data, nil, func(e Element) {
				_, _, _, _, _ = e.String(), e.Owner(), e.Target(), e.MAC(), e.Link()
			})
		}
		r := installedRule{exprs: data}
		r.acceptRule()
		r.jump()
		r.xtComment()
		flowTo(data, v4)
		flowTo(data, v6)
		_ = ownerKey(string(readComment(data)))
	})
}
