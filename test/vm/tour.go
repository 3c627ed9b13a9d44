package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cnibox/cnibox/test/document"
)

//go:embed tour.sh
var tourScript string

// tourSection is the section of the document with the commands.
const tourSection = "## Namespaces without iproute2"

// runTour runs the commands of the document in an initramfs with only busybox and cnibox: no
// iproute2, no nft, no shared library.
func runTour(ctx context.Context, o options) error {
	begin := time.Now()
	networks, err := document.Blocks(document.Tutorial, "## Networks", "sh")
	if err != nil {
		return err
	}
	commands, err := document.Blocks(document.Tutorial, tourSection, "sh")
	if err != nil {
		return err
	}
	t, err := cached(ctx, guidedKernel, o.update)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "cnibox-tour-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	im := newImage()
	if err := im.host("/bin/busybox"); err != nil {
		return err
	}
	im.copy("/opt/cni/bin/cnibox", benchBinary, 0o755)
	im.link("/usr/sbin/cni-exec", "/opt/cni/bin/cnibox")
	im.text("/init", tourScript, 0o755)
	im.text("/etc/tour", networks+commands, 0o644)
	im.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)
	if err := t.addModules(im, nil); err != nil {
		return err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := im.write(initrd); err != nil {
		return err
	}
	m := machine{dir: dir, processors: o.processors()}
	m.accel, m.cmdline = accelerator(ctx, t.vmlinuz)
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("the guest was not done within %v", o.limit))
	defer cancel()
	if _, err := m.follow(ctx, "tour", "-kernel", t.vmlinuz, "-initrd", initrd, "-append", m.cmdline); err != nil {
		return fmt.Errorf("tour: %w", err)
	}
	fmt.Printf("tour: PASS: the commands of %q in an initramfs with busybox, Linux %s (%.0f s)\n", tourSection, t.release, time.Since(begin).Seconds())
	return nil
}
