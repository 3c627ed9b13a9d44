package json

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// unquote reads a valid string. What is no UTF-8, and half a surrogate pair, becomes U+FFFD.
func unquote(quoted []byte) string {
	in := quoted[1 : len(quoted)-1]
	plain := 0
	for plain < len(in) && in[plain] != '\\' && in[plain] < utf8.RuneSelf {
		plain++
	}
	if plain == len(in) {
		return string(in)
	}
	out := append(make([]byte, 0, len(in)), in[:plain]...)
	for i := plain; i < len(in); {
		var r rune
		var size int
		if in[i] == '\\' {
			r, size = escaped(in[i:])
		} else {
			r, size = utf8.DecodeRune(in[i:])
		}
		out = utf8.AppendRune(out, r)
		i += size
	}
	return string(out)
}

// escaped reads an escape, or two that are a surrogate pair, and returns how many bytes
// that takes.
func escaped(in []byte) (rune, int) {
	switch c := in[1]; c {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
	default:
		return rune(c), 2
	}
	r := unit(in)
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(in) >= 12 && in[6] == '\\' && in[7] == 'u' {
		if pair := utf16.DecodeRune(r, unit(in[6:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// unit reads the four digits of an escape.
func unit(in []byte) rune {
	n, _ := strconv.ParseUint(string(in[2:6]), 16, 32) // valid already
	return rune(n)
}

const hex = "0123456789abcdef"

// quote appends a string; what HTML gives a meaning is escaped, as in encoding/json.
func quote(out []byte, s string) []byte {
	out = append(out, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			out = quoteByte(out, c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			out = append(out, `\ufffd`...)
		case r == '\u2028' || r == '\u2029': // ends of lines in JavaScript
			out = append(out, `\u202`...)
			out = append(out, hex[r&0xf])
		default:
			out = append(out, s[i:i+size]...)
		}
		i += size
	}
	return append(out, '"')
}

// quoteByte appends an ASCII character.
func quoteByte(out []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(out, '\\', c)
	case '\b':
		return append(out, '\\', 'b')
	case '\f':
		return append(out, '\\', 'f')
	case '\n':
		return append(out, '\\', 'n')
	case '\r':
		return append(out, '\\', 'r')
	case '\t':
		return append(out, '\\', 't')
	}
	if c < ' ' || c == '<' || c == '>' || c == '&' {
		return append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
	}
	return append(out, c)
}
