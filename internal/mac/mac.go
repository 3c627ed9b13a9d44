// Package mac is link layer addresses, read and written as the standard library
// does. Its package net brings 24 KB of DNS and sockets into the binary, which set
// up their tables at every start, and nothing of them is used here.
package mac

import (
	"encoding/hex"
	"errors"
)

// An Addr is a link layer address, first octet first; nil: none.
type Addr []byte

// String writes the octets in small hexadecimal digits with colons between them;
// none are the empty string.
func (a Addr) String() string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, 3*len(a))
	for i, octet := range a {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, digits[octet>>4], digits[octet&0xf])
	}
	return string(b)
}

// Parse reads an address of 6 octets (Ethernet), or of 20 (IP over InfiniBand,
// RFC 4391 section 9.1.1): pairs of hexadecimal digits with colons or hyphens
// between them, fours with dots, or digits alone. EUI-64 is refused, which no
// link has that an applet makes.
func Parse(s string) (Addr, error) {
	a, err := hex.DecodeString(digits(s))
	if err != nil || len(a) != 6 && len(a) != 20 {
		return nil, errors.New("address " + s + ": invalid MAC address")
	}
	return a, nil
}

// digits takes out the separators; what has them in the wrong places is empty.
func digits(s string) string {
	width := 2 // digits in a group
	switch {
	case len(s) < 12:
		return ""
	case s[2] == ':', s[2] == '-':
	case s[4] == '.':
		width = 4
	default:
		return s
	}
	if len(s)%(width+1) == 0 {
		return "" // a separator, or something in its place, at the end
	}
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		switch at := i % (width + 1); {
		case at < width:
			b = append(b, s[i])
		case s[i] != s[width]:
			return ""
		}
	}
	return string(b)
}
