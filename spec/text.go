package spec

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Printable returns one line without an effect on a terminal: a question mark replaces each
// character that is not printable (including control characters, newlines, tabs, and characters
// that change the direction of writing) and invalid UTF-8. Names of files and links may contain any
// of them.
func Printable(text string) string { return strings.Map(printed, text) }

// PrintableLines is [Printable] for a text of several lines, such as a plugin's stderr. Tabs stay.
func PrintableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printed(r)
	}, text)
}

// printed returns the character to print.
func printed(r rune) rune {
	if !strconv.IsPrint(r) || r == utf8.RuneError {
		return '?'
	}
	return r
}

// Lines returns a writer that writes to w through [PrintableLines]; nil for nil. Each write must
// have whole characters.
func Lines(w io.Writer) io.Writer {
	if w == nil {
		return nil
	}
	return lines{w}
}

// lines is the writer.
type lines struct{ w io.Writer }

func (l lines) Write(b []byte) (int, error) {
	if _, err := io.WriteString(l.w, PrintableLines(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// EscapeJSON returns a JSON document in which all characters that [Printable] replaces are escaped
// as \u and four digits, with the same meaning. encoding/json escapes only those of ASCII. Invalid
// UTF-8 becomes U+FFFD, as in every Go decoder. If there is nothing to escape, it returns doc
// itself.
func EscapeJSON(doc []byte) []byte {
	var out []byte // nil: nothing was escaped yet
	done := 0
	for i := 0; i < len(doc); {
		if ' ' <= doc[i] && doc[i] < 0x7f || doc[i] == '\n' || doc[i] == '\t' || doc[i] == '\r' {
			i++
			continue
		}
		r, size := utf8.DecodeRune(doc[i:])
		if bad := r == utf8.RuneError && size == 1; bad || !strconv.IsPrint(r) {
			out = append(out, doc[done:i]...)
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
			done = i + size
		}
		i += size
	}
	if out == nil {
		return doc
	}
	return append(out, doc[done:]...)
}

// maxQuoted is the length limit of a value in a message, in bytes.
const maxQuoted = 100

// Shorten cuts the values in a message after 100 bytes, since a key may have a value of megabytes:
// values in double quotes, as %q and JSON write them, and words longer than a name that are not
// absolute paths.
func Shorten(msg string) string {
	if len(msg) <= maxQuoted {
		return msg
	}
	var b strings.Builder
	for {
		open := strings.IndexByte(msg, '"')
		if open < 0 {
			break
		}
		end := closing(msg, open+1)
		if end < 0 {
			break
		}
		value := msg[open+1 : end]
		if len(value) > maxQuoted {
			value = cutEscaped(value) + "…"
		}
		b.WriteString(cutWords(msg[:open]) + `"` + value + `"`)
		msg = msg[end+1:]
	}
	b.WriteString(cutWords(msg))
	return b.String()
}

// cutWords cuts the words of a text.
func cutWords(text string) string {
	if len(text) <= maxName {
		return text
	}
	words := strings.SplitAfter(text, " ")
	for i, w := range words {
		if word := strings.TrimSuffix(w, " "); len(word) > maxName && word[0] != '/' {
			words[i] = strings.ToValidUTF8(word[:maxQuoted], "") + "…" + w[len(word):]
		}
	}
	return strings.Join(words, "")
}

// closing returns the position of the quote that ends a value; -1: there is none.
func closing(msg string, from int) int {
	for i := from; i < len(msg); i++ {
		switch msg[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// cutEscaped cuts a quoted text between two characters or escapes.
func cutEscaped(text string) string {
	for i := 0; ; {
		_, size := utf8.DecodeRuneInString(text[i:])
		if text[i] == '\\' {
			switch text[i+1] { // closing has checked that it exists
			case 'x':
				size = len(`\x00`)
			case 'u':
				size = len(`\u0000`)
			case 'U':
				size = len(`\U00000000`)
			default:
				size = 2
			}
		}
		if i+size > maxQuoted {
			return text[:i]
		}
		i += size
	}
}
