// Package memory bounds the memory of a process: while it decodes large input, which is decoded
// several times over, while it reads much and ends, and while it waits.
package memory

import "runtime/debug"

// Input is large from so many bytes on. With such, garbage is collected when the process has limit
// bytes, and not when there is as much garbage as there is of what is used.
const (
	large = 128 << 10
	limit = 44 << 20
)

// For is called with the size of what was read, before it is decoded.
func For(size int) {
	if size > large {
		debug.SetMemoryLimit(limit)
	}
}
