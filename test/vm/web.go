package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed web.sh
var webScript string

// Programs of the guest's web server.
const (
	webFetch = `#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w 20 "${QUERY_STRING%:*}" "${QUERY_STRING##*:}"
`
	webOff = `#!/bin/sh
poweroff -f
`
)

// writeWeb writes to a directory what the trials of test/clients boot a guest with, a web server: its kernel, its
// initramfs, and its command line.
func writeWeb(ctx context.Context, o options) error {
	t, err := cached(ctx, guidedKernel, o.update)
	if err != nil {
		return err
	}
	im := newImage()
	if err := im.host("/bin/busybox"); err != nil {
		return err
	}
	im.text("/init", webScript, 0o755)
	im.text("/www/index.html", "hello from a container\n", 0o644) // as test/clients has it
	im.text("/www/big", strings.Repeat("\x00", 512<<10), 0o644)
	im.text("/www/cgi-bin/fetch", webFetch, 0o755)
	im.text("/www/cgi-bin/off", webOff, 0o755)
	im.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)
	if err := t.addModules(im, nil); err != nil {
		return err
	}
	vmlinuz, err := os.ReadFile(t.vmlinuz)
	if err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(o.web, name) }
	err = errors.Join(os.MkdirAll(o.web, 0o755), os.WriteFile(at("guest-vmlinuz"), vmlinuz, 0o644), im.write(at("guest-initrd")),
		os.WriteFile(at("guest-cmdline"), []byte(cmdline+clock()), 0o644))
	if err == nil {
		fmt.Printf("%s: a guest of Linux %s with a web server\n", o.web, t.release)
	}
	return err
}
