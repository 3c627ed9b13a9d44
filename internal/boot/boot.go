// Package boot tells one boot of the machine from another: no network namespace outlives
// one, so neither does what attachments own.
package boot

import (
	"strings"
	"sync"

	"cnibox/internal/disk"
)

// ID returns what the kernel calls this boot, a UUID (random(4)); empty where it does
// not tell. It is read once, since no process outlives its boot.
var ID = sync.OnceValue(func() string {
	b, err := disk.Read("/proc/sys/kernel/random/boot_id", 0, 64)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})
