package trace

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/nft/foreign"
)

// The sums over headers and data with their checksums are 0xffff: RFC 1071.
func TestProbeChecksums(t *testing.T) {
	for _, addrs := range [][2]string{{"203.0.113.77", "10.1.0.2"}, {"2001:db8::77", "fd00::2"}} {
		src, dst := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1])
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			p := &Probe{Proto: proto, Src: src, Dst: netip.AddrPortFrom(dst, 8080)}
			b, header := p.packet(&foreign.Tag{1, 2, 3, 4, 5, 6}, 7), 40
			if src.Is4() {
				header = 20
				if folded(sumOf(0, b[:header])) != 0 || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
					t.Errorf("header of IPv4: % x", b[:header])
				}
			}
			if sum := sumOf(sumOf(sumOf(uint32(proto)+uint32(len(b)-header), src.AsSlice()), dst.AsSlice()), b[header:]); folded(sum) != 0 {
				t.Errorf("%s, protocol %d: % x", dst, proto, b[header:])
			}
		}
	}
}
