package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// guidedKernel is the kernel of guests that follow the documents: Debian 12's own. NVMe and ext4
// are built in, so it needs no initramfs.
const guidedKernel = "6.1"

// cached returns a kernel by name, and fetches it if it is not in the cache.
func cached(ctx context.Context, name string, update bool) (tree, error) {
	chosen, err := choose(name)
	if err != nil {
		return tree{}, err
	}
	return chosen[0].get(ctx, cacheDir(), update)
}

// follow runs a guest until it ends as its script has announced: by a reboot, or by killing qemu,
// as in a power cut. It prints the script's other output.
func (m machine) follow(ctx context.Context, what string, more ...string) (end string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	console := filepath.Join(m.dir, "console")
	cmd, out, words, err := m.start(ctx, console, append([]string{"-no-reboot"}, more...)...)
	if err != nil {
		return "", err
	}
	err = listen(ctx, out, func(text string) {
		announced, ok := strings.CutPrefix(text, mark+"end ")
		if !ok {
			fmt.Println(what+":", text)
			return
		}
		if end = announced; end != "reboot" {
			cancel()
		}
	})
	if err == nil {
		defer time.AfterFunc(grace, cancel).Stop()
	} else {
		cancel()
	}
	cmd.Wait() // ProcessState has the result
	switch {
	case end == "failed":
		return "", errors.New("a step failed")
	case end != "" && (err == nil || end != "reboot"):
		return end, nil
	case err == nil:
		err = fmt.Errorf("the guest died: qemu says %s %s", cmd.ProcessState, strings.TrimSpace(words.String()))
	}
	fmt.Println(tail(console, consoleTail))
	return "", err
}
