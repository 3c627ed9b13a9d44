package applet

import (
	"os"
	"strings"
	"testing"
	"time"
)

// Input has a limit for its size and, of a file, one for the time until it ends.
func TestInput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.WriteString("{}"); err != nil {
		t.Fatal(err)
	}
	if doc, err := (Process{Stdin: r}).Input(t.Context(), 8, time.Millisecond); err == nil || !strings.Contains(err.Error(), "did not end within 1ms") {
		t.Errorf("a pipe that stays open: %q, %v", doc, err)
	}
	for text, ok := range map[string]bool{"": true, "12345678": true, "123456789": false} {
		doc, err := (Process{Stdin: strings.NewReader(text)}).Input(t.Context(), 8, time.Minute)
		if ok && (err != nil || string(doc) != text) || !ok && err == nil {
			t.Errorf("%q: %q, %v", text, doc, err)
		}
	}
	closed, _, _ := os.Pipe()
	closed.Close()
	if _, err := (Process{Stdin: closed}).Input(t.Context(), 8, time.Minute); err == nil {
		t.Error("a closed file has no error")
	}
}
