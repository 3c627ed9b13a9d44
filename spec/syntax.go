package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// NotJSON returns an error that says why, and where, a document is not JSON, and how to correct it;
// it wraps the [json.SyntaxError]. Any other error is returned unchanged.
func NotJSON(doc []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	offset, text := mistake(doc, syntax)
	return &keyed{text: text, err: err, offset: offset}
}

// mistake returns the offset of a syntax error, and how to correct it.
func mistake(doc []byte, err *json.SyntaxError) (offset int, text string) {
	at := max(0, int(err.Offset)-1) // Offset includes the byte itself
	before := bytes.TrimRight(doc[:at], " \t\r\n")
	switch {
	case len(bytes.TrimSpace(doc)) == 0:
		return 0, "the file is empty"
	case bytes.HasPrefix(doc, []byte("\xef\xbb\xbf")):
		return 0, "not JSON: a byte order mark: save the file as UTF-8 without one"
	case bytes.HasPrefix(doc, []byte("\xff\xfe")), bytes.HasPrefix(doc, []byte("\xfe\xff")):
		return 0, "not JSON: the file is UTF-16: save it as UTF-8"
	case strings.HasPrefix(err.Error(), "unexpected end"):
		return len(doc), "not JSON: the end is missing"
	case bytes.HasSuffix(before, []byte(",")) && (doc[at] == '}' || doc[at] == ']'):
		return len(before) - 1, fmt.Sprintf("not JSON: a comma before %q: remove it", doc[at:at+1])
	}
	return at, "not JSON: " + expected(err.Error(), before, doc[at:], len(before) == at)
}

// expected returns what must be at the position where encoding/json stopped, between before and
// rest; adjacent: there are no blanks between them.
func expected(reason string, before, rest []byte, adjacent bool) string {
	mentions := func(state string) bool { return strings.Contains(reason, state) }
	next, _ := utf8.DecodeRune(rest)
	word := rest[:max(0, bytes.IndexFunc(rest, func(c rune) bool { return !unicode.IsLetter(c) }))]
	switch {
	case next == '/' || next == '#':
		return "there are no comments in JSON"
	case mentions("after top-level value"):
		return "the document has ended before this: remove it"
	case mentions("in string literal"):
		return `a string must end in its line, with a double quote; a tab in it is written \t`
	case next == '\'':
		return "strings are in double quotes"
	case next >= utf8.RuneSelf:
		return fmt.Sprintf("%q is neither a double quote nor a blank: replace it", next)
	case bytes.HasSuffix(before, []byte(":")) && strings.ContainsRune(",}]", next):
		return "a value is missing before this"
	case mentions("beginning of") && next == ',':
		return "a comma too many: remove it"
	case mentions("after object key:value pair") && next == ']':
		return `"}" is missing before this`
	case mentions("after array element") && next == '}':
		return `"]" is missing before this`
	case mentions("after object key:value pair") && next == '"', mentions("after array element") && strings.ContainsRune(`"{[`, next):
		return "a comma is missing before this"
	case adjacent && mentions("after") && strings.ContainsRune(".0123456789", rune(before[len(before)-1])):
		return "this is not a number: write a string in double quotes"
	case mentions("after object key:value pair"), mentions("after array element"):
		return "a comma or a double quote is missing before this"
	case mentions("after object key"):
		return "a colon is missing before this"
	case mentions("object key string"):
		return "a key must be in double quotes"
	case mentions("beginning of value") && slices.Contains([]string{"true", "false", "null"}, strings.ToLower(string(word))):
		return fmt.Sprintf("%q is written %s", word, strings.ToLower(string(word)))
	case mentions("beginning of value") && len(word) > 0, mentions("in literal"):
		return "a string must be in double quotes"
	}
	return reason
}
