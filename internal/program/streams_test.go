package program

import (
	"io"
	"strings"
	"testing"
	"time"
)

// What a program has written before it ends is read, even if the time for that has passed; nothing
// else is waited for.
func TestStreamsReadAfterDeadline(t *testing.T) {
	for name, text := range map[string]string{"nothing": "", "an answer": "{}", "a full pipe": strings.Repeat("x", pipeSize)} {
		t.Run(name, func(t *testing.T) {
			var out, diag strings.Builder
			var s streams
			for _, w := range []io.Writer{&out, &diag} {
				if _, err := s.to(w); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.theirs[0].WriteString(text); err != nil {
				t.Fatal(err)
			}
			daemon := s.theirs[1] // keeps stderr open
			s.theirs = s.theirs[:1]
			defer daemon.Close()
			for _, f := range s.ours {
				f.SetDeadline(time.Unix(1, 0))
			}
			s.begin()
			s.drained.Wait()
			if out.String() != text || diag.String() != "" {
				t.Errorf("got %d bytes and %q, want %d", out.Len(), diag.String(), len(text))
			}
		})
	}
}
