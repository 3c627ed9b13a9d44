package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestChecksum(t *testing.T) {
	tests := map[string]struct {
		b    []byte
		want uint16
	}{
		"RFC 1071, section 3": {[]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}, 0x220d},
		"odd length":          {[]byte{0x01}, 0xfeff},
		"nothing":             {nil, 0xffff},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := checksum(tt.b); got != tt.want {
				t.Errorf("got %#x, want %#x", got, tt.want)
			}
		})
	}
}

// A failed step is marked and its error returned; times are at the right margin.
func TestStep(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		err  error
		mark string
	}{"well": {nil, "✓"}, "ill": {broken, "✗"}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			err := (&page{w: &b}).step(func() (string, error) { return "client → web", tt.err })
			line := strings.TrimSuffix(b.String(), "\n")
			if !errors.Is(err, tt.err) || !strings.HasPrefix(line, " "+tt.mark+" client → web") {
				t.Errorf("got %q, %v; want %s and %v", line, err, tt.mark, tt.err)
			}
			if n := utf8.RuneCountInString(line); err == nil && n != width {
				t.Errorf("the line has %d columns, want %d: %q", n, width, line)
			}
		})
	}
}
