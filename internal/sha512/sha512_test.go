package sha512

import (
	"crypto/sha512"
	"testing"
)

// TestSum512 compares every length around the ends of blocks with the
// standard library.
func TestSum512(t *testing.T) {
	b := make([]byte, 3*block)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for n := range b {
		if got, want := Sum512(b[:n]), sha512.Sum512(b[:n]); got != want {
			t.Fatalf("%d bytes: got %x, want %x", n, got, want)
		}
	}
}
