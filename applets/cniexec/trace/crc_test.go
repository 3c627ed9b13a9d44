package trace

import (
	"hash/crc32"
	"testing"
)

func TestCRC32C(t *testing.T) {
	for _, text := range []string{"", "\x00", "123456789", "a packet that is longer than a word"} {
		if got, want := crc32c([]byte(text)), crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)); got != want {
			t.Errorf("of %q: got %08x, want %08x", text, got, want)
		}
	}
}
