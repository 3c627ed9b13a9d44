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

// upSection is the section of the document about `cni-exec up`.
const upSection = "## Namespaces in a file"

// tourSections have the commands that need no program but busybox's.
var tourSections = []string{"## Networks", "## Namespaces without iproute2", "## A namespace for a command", upSection}

// runTour boots the initramfs of examples, with only busybox and cnibox: no iproute2, no nft, no shared library. Behind
// what its first process does it runs the commands of the document.
func runTour(ctx context.Context, o options) error {
	begin := time.Now()
	steps, err := document.Steps(document.Tutorial, tourSections...)
	if err != nil {
		return err
	}
	commands := ""
	for _, step := range steps {
		commands += step.Commands
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
	im.copy("/init", "examples/initramfs/init", 0o755)
	im.copy("/etc/namespaces.json", "examples/initramfs/namespaces.json", 0o644)
	im.copy("/etc/cni/net.d/edge.conflist", "examples/initramfs/edge.conflist", 0o644)
	im.text("/srv/index.html", "hello from web\n", 0o644)
	im.text("/etc/rc.local", tourScript, 0o644)
	im.text("/etc/tour", commands, 0o644)
	im.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644)
	if err := t.addModules(im, nil); err != nil {
		return err
	}
	initrd := filepath.Join(dir, "initrd")
	if err := im.write(initrd); err != nil {
		return err
	}
	m := machine{dir: dir}
	m.accel, m.cmdline = accelerator(ctx, t.vmlinuz)
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("the guest was not done within %v", o.limit))
	defer cancel()
	if _, err := m.follow(ctx, "tour", "-kernel", t.vmlinuz, "-initrd", initrd, "-append", m.cmdline); err != nil {
		return fmt.Errorf("tour: %w", err)
	}
	fmt.Printf("tour: PASS: examples/initramfs, a run in 16 MB, and %d commands of %s, Linux %s (%.0f s)\n", len(steps), document.Tutorial, t.release, time.Since(begin).Seconds())
	return nil
}
