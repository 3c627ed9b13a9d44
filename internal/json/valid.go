// Package json reads and writes JSON (RFC 8259) as encoding/json does: the same
// values, text and errors for what the program has, which are structs, maps, slices,
// strings, bytes, integers, bools and types that read or write themselves. Of
// floating-point numbers it knows nothing.
//
// It is there for its size: the binary was 176 KB larger with encoding/json, of 4 MB.
// Tests compare the two.
package json

import "strconv"

// maxDepth is how deep a document may be nested, as in encoding/json.
const maxDepth = 10000

// A SyntaxError tells what is not JSON. Offset counts the bytes that were read before,
// the offending one among them.
type SyntaxError struct {
	Offset int64
	text   string
}

// Error is the text of encoding/json, for people who search for it.
func (e *SyntaxError) Error() string { return e.text }

// Valid reports whether b is one JSON value.
func Valid(b []byte) bool { return check(b) == nil }

// check is Valid with the reason.
func check(b []byte) error {
	s := scanner{b: b}
	s.value(0)
	s.space()
	if s.err == nil && s.i < len(b) {
		s.fail("after top-level value")
	}
	if s.err != nil {
		return s.err
	}
	return nil
}

// A scanner goes through a document once. After the first error it stays where it is.
type scanner struct {
	b   []byte
	i   int // the next byte
	err *SyntaxError
}

// space goes over white space.
func (s *scanner) space() {
	for s.i < len(s.b) && isSpace(s.b[s.i]) {
		s.i++
	}
}

// isSpace knows the four bytes between tokens.
func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// fail notes that the next byte, or the end, cannot stand here.
func (s *scanner) fail(where string) {
	if s.err != nil {
		return
	}
	if s.i >= len(s.b) {
		s.err = &SyntaxError{int64(len(s.b)), "unexpected end of JSON input"}
		return
	}
	s.err = &SyntaxError{int64(s.i + 1), "invalid character " + quoteChar(s.b[s.i]) + " " + where}
}

// quoteChar writes a byte as encoding/json's errors do.
func quoteChar(c byte) string {
	switch c {
	case '\'':
		return `'\''`
	case '"':
		return `'"'`
	}
	q := strconv.Quote(string(rune(c)))
	return "'" + q[1:len(q)-1] + "'"
}

// failWithin is fail in the midst of a word, a number or an escape, where encoding/json
// takes the end for a blank.
func (s *scanner) failWithin(where string) {
	if s.err == nil && s.i >= len(s.b) {
		s.err = &SyntaxError{int64(len(s.b)), "invalid character ' ' " + where}
	}
	s.fail(where)
}

// next reports whether the next byte is c, and goes over it.
func (s *scanner) next(c byte) bool {
	if s.err != nil || s.i >= len(s.b) || s.b[s.i] != c {
		return false
	}
	s.i++
	return true
}

// peek returns the next byte; 0, which can stand nowhere, at the end.
func (s *scanner) peek() byte {
	if s.i >= len(s.b) {
		return 0
	}
	return s.b[s.i]
}

// value goes over one value, and the space before it.
func (s *scanner) value(depth int) {
	if s.space(); s.err != nil {
		return
	}
	switch c := s.peek(); {
	case (c == '{' || c == '[') && depth == maxDepth:
		s.fail("exceeded max depth")
	case c == '{':
		s.object(depth)
	case c == '[':
		s.array(depth)
	case c == '"':
		s.string()
	case c == '-' || isDigit(c):
		s.number()
	case c == 't':
		s.word("true")
	case c == 'f':
		s.word("false")
	case c == 'n':
		s.word("null")
	default:
		s.fail("looking for beginning of value")
	}
}

// object goes over an object; the next byte is its brace.
func (s *scanner) object(depth int) {
	s.i++
	if s.space(); s.next('}') {
		return
	}
	for s.err == nil {
		if s.space(); s.peek() != '"' {
			s.fail("looking for beginning of object key string")
			return
		}
		s.string()
		if s.space(); !s.next(':') {
			s.fail("after object key")
			return
		}
		s.value(depth + 1)
		if s.space(); s.next('}') {
			return
		}
		if !s.next(',') {
			s.fail("after object key:value pair")
		}
	}
}

// array goes over an array; the next byte is its bracket.
func (s *scanner) array(depth int) {
	s.i++
	if s.space(); s.next(']') {
		return
	}
	for s.err == nil {
		s.value(depth + 1)
		if s.space(); s.next(']') {
			return
		}
		if !s.next(',') {
			s.fail("after array element")
		}
	}
}

// string goes over a string; the next byte is its quote.
func (s *scanner) string() {
	for s.i++; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return
		case c == '\\':
			if s.i++; !s.escape() {
				return
			}
		case c < ' ':
			s.fail("in string literal")
			return
		}
	}
	s.fail("")
}

// escape goes over what follows a backslash, but for its last byte.
func (s *scanner) escape() bool {
	switch c := s.peek(); c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
	default:
		s.failWithin("in string escape code")
		return false
	}
	for range 4 {
		s.i++
		if !isHex(s.peek()) {
			s.failWithin(`in \u hexadecimal character escape`)
			return false
		}
	}
	return true
}

// isDigit knows digits of base 10.
func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isHex knows digits of base 16.
func isHex(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// digits goes over at least one digit.
func (s *scanner) digits(where string) {
	if !isDigit(s.peek()) {
		s.failWithin(where)
	}
	for s.err == nil && isDigit(s.peek()) {
		s.i++
	}
}

// number goes over a number; the next byte begins it.
func (s *scanner) number() {
	s.next('-')
	if !s.next('0') {
		s.digits("in numeric literal")
	}
	if s.next('.') {
		s.digits("after decimal point in numeric literal")
	}
	if s.next('e') || s.next('E') {
		if !s.next('+') {
			s.next('-')
		}
		s.digits("in exponent of numeric literal")
	}
}

// word goes over one of the three literals; its first byte is right.
func (s *scanner) word(w string) {
	for i := 1; i < len(w); i++ {
		if s.i++; s.peek() != w[i] {
			s.failWithin("in literal " + w + " (expecting " + quoteChar(w[i]) + ")")
			return
		}
	}
	s.i++
}
