package nft

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
)

// Masks of every length equal those of package net.
func TestMaskOf(t *testing.T) {
	for _, a := range []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::1")} {
		for bits := range a.BitLen() + 1 {
			got, want := maskOf(netip.PrefixFrom(a, bits)), net.CIDRMask(bits, a.BitLen())
			if !bytes.Equal(got, want) {
				t.Errorf("%s/%d: got %x, want %x", a, bits, got, want)
			}
		}
	}
}
