package spec

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// Printable text cannot control a terminal.
func TestPrintable(t *testing.T) {
	const text = "a\x1b[31mb\x07\xffc\n\td\u009b\u202eé"
	if got, want := Printable(text), "a?[31mb??c??d??é"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := PrintableLines(text), "a?[31mb??c\n\td??é"; got != want {
		t.Errorf("lines: got %q, want %q", got, want)
	}
	var out strings.Builder
	w := Lines(&out)
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil || out.String() != PrintableLines(text) {
		t.Errorf("writer: %d, %v, %q", n, err, out.String())
	}
	if Lines(nil) != nil {
		t.Error("a writer for nothing")
	}
}

// Escaped JSON has no characters that control a terminal, and the same meaning.
func TestEscapeJSON(t *testing.T) {
	for text, want := range map[string]string{
		"plain é 日":                    "",
		"\u009b31m":                    `"\u009b31m"`,
		"del \x7f, rtl \u202e, \u00a0": `"del \u007f, rtl \u202e, \u00a0"`,
		"tag \U000e0041":               `"tag \udb40\udc41"`,
		"\x1b \" \\":                   `"\u001b \" \\"`,
	} {
		doc, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		got := EscapeJSON(doc)
		if want == "" {
			want = string(doc)
		}
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != text || string(got) != want {
			t.Errorf("%q: got %s, which is %q (%v), want %s", text, got, back, err, want)
		}
	}
	if got, want := string(EscapeJSON([]byte("\"a\xff\""))), `"a\ufffd"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Quoted values are truncated, and nothing else.
func TestShorten(t *testing.T) {
	long, word := strings.Repeat("x", 200), strings.Repeat("é", 200)
	for msg, want := range map[string]string{
		"the device " + word + " is none":         "the device " + word[:100] + "… is none",
		"/" + word + ":1:2: " + word:              "/" + word + ":1:2: " + word[:100] + "…",
		long:                                      long,
		`key "a" ` + long:                         `key "a" ` + long,
		`key "` + long + `" is "b"`:               `key "` + long[:100] + `…" is "b"`,
		`"` + strings.Repeat(`\"`, 80) + `" "c"`:  `"` + strings.Repeat(`\"`, 50) + `…" "c"`,
		`"a` + strings.Repeat(`\u202e`, 30) + `"`: `"a` + strings.Repeat(`\u202e`, 16) + `…"`,
		`"a` + strings.Repeat(`é`, 80) + `"`:      `"a` + strings.Repeat(`é`, 49) + `…"`,
		`"` + long:                                `"` + long,
		`"` + long + `\`:                          `"` + long + `\`,
	} {
		if got := Shorten(msg); got != want || !utf8.ValidString(got) {
			t.Errorf("%s: got %s, want %s", msg, got, want)
		}
	}
}
