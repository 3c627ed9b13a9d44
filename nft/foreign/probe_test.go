package foreign

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The number of a probe is found in its header, as long as the kernel reports that, and in no other header.
func TestTagNumber(t *testing.T) {
	tag, other := &Tag{1, 2, 3, 4, 5, 6}, &Tag{1, 3, 3, 4, 5, 6}
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		b, _ := tag.Header(proto, 0x1234, 50007, 80)
		if got := tag.number(proto, b[:min(len(b), 20)]); got != 0x1234 {
			t.Errorf("protocol %d: number %#x", proto, got)
		}
		if got := other.number(proto, b); got != 0 {
			t.Errorf("protocol %d: another tag has number %#x", proto, got)
		}
		if got := tag.number(proto, b[:len(b)-1]); got != 0 {
			t.Errorf("protocol %d, cut: number %#x", proto, got)
		}
	}
}
