// Package boot identifies the boot of the machine. No network namespace outlives one, so what
// is stored with the ID of another boot, as a lease or a cache entry, belongs to an attachment
// that is gone.
package boot

import (
	"strings"
	"sync"

	"cnibox/internal/disk"
)

var (
	once sync.Once
	id   string
)

// ID returns the kernel's ID of this boot, a UUID (random(4)); empty if it cannot be read, as
// without /proc. It is read once, since no process outlives its boot.
func ID() string {
	once.Do(func() {
		if b, err := disk.Read("/proc/sys/kernel/random/boot_id", 0, 64); err == nil {
			id = strings.TrimSpace(string(b))
		}
	})
	return id
}
