// Package memory sets the garbage collector for a process that decodes large input, which is decoded
// several times, that reads much and ends, or that waits.
package memory

import "runtime/debug"

// With input of more than large bytes, garbage is also collected when the process has limit bytes, before
// the heap has doubled.
const (
	large = 128 << 10
	limit = 44 << 20
)

// For sets the limit if size, of input in bytes, is large. It is called before the input is decoded.
func For(size int) {
	if size > large {
		debug.SetMemoryLimit(limit)
	}
}
