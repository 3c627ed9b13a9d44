package tty

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// On a terminal, a bar is drawn in steps of one percent.
func TestProgress(t *testing.T) {
	master, slave := kerneltest.Terminal(t)
	shown := make(chan []byte)
	go func() {
		out, _ := io.ReadAll(master) // EIO when the slave is closed
		shown <- out
	}()
	p := NewProgress(slave, "gc demo")
	for done := range 1001 {
		p.Show(done, 1000)
	}
	p.Clear()
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	out := <-shown
	if !bytes.HasPrefix(out, []byte("\rgc demo [                                        ] 0/1000\r")) {
		t.Errorf("it begins with %.80q", out)
	}
	if end := []byte("\rgc demo [========================================] 1000/1000\r\x1b[K"); !bytes.HasSuffix(out, end) {
		t.Errorf("it ends with %.80q", out[max(0, len(out)-80):])
	}
	if lines := bytes.Count(out, []byte("gc demo")); lines != 101 {
		t.Errorf("drawn %d times, want 101", lines)
	}
}

func TestProgressOnlyOnTerminal(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, p := range []*Progress{NewProgress(file, "x"), NewProgress(&bytes.Buffer{}, "x"), {}} {
		p.Show(1, 2)
		p.Clear()
	}
	if st, err := file.Stat(); err != nil || st.Size() != 0 {
		t.Errorf("a file got %v, %v", st, err)
	}
}
