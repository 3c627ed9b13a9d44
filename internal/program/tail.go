package program

// maxTail is what a [Tail] keeps, in bytes.
const maxTail = 64 << 10

// A Tail is an [io.Writer] that keeps the last 64 KiB: a program mostly prints last why it failed.
type Tail struct{ b []byte }

// Write never fails; it keeps up to twice as much, so that it seldom moves bytes.
func (t *Tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*maxTail {
		t.b = append(t.b[:0], t.b[len(t.b)-maxTail:]...)
	}
	return len(p), nil
}

// Bytes returns what was kept.
func (t *Tail) Bytes() []byte { return t.b[max(0, len(t.b)-maxTail):] }
