package state

import (
	"strings"
	"sync"

	"github.com/cnibox/cnibox/internal/disk"
)

var boot struct {
	once sync.Once
	id   string
}

// BootID returns the kernel's ID of this boot, a UUID (random(4)); empty if it cannot be read, as
// without /proc. It is read once, since no process outlives its boot. No network namespace does either:
// a lease or a cache entry with the ID of another boot belongs to an attachment that is gone.
func BootID() string {
	boot.once.Do(func() {
		if b, err := disk.Read("/proc/sys/kernel/random/boot_id", 0, 64); err == nil {
			boot.id = strings.TrimSpace(string(b))
		}
	})
	return boot.id
}
