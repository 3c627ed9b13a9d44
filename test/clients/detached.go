package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

// detached: ctr calls no DEL when a container of `run -d` ends. gc finds the attachment by libcni's
// cache, and keeps the one that is alive. The entry of containerd 1.6 has no path of a namespace;
// the result has it.
func (h *host) detached() error {
	text := "ctr run -d leaves its network; cni-exec gc takes it away"
	return step(text, func() error {
		for _, id := range []string{"dead", "alive"} {
			if _, err := h.ctrRun(id, []string{"-d"}); err != nil {
				return err
			}
		}
		if err := h.end("dead"); err != nil {
			return err
		}
		if _, err := address("default-dead"); err != nil {
			return fmt.Errorf("ctr called DEL after all: %w", err)
		}
		if err := gc(network); err != nil {
			return err
		}
		left, err := h.leftovers()
		if err != nil {
			return err
		}
		if len(left) == 0 || strings.Contains(strings.Join(left, " "), "default-dead") {
			return fmt.Errorf("left after gc, with one container alive: %q", left)
		}
		if err := h.end("alive"); err != nil {
			return err
		}
		if err := gc(network); err != nil {
			return err
		}
		return eventually(h.empty)
	})
}

// end kills a container's task and deletes both.
func (h *host) end(id string) error {
	if _, err := h.ctr("task", "rm", "--force", id); err != nil && !strings.Contains(err.Error(), "137") {
		return err
	}
	_, err := h.ctr("container", "rm", id)
	return err
}

// killed: containerd 2 calls DEL of a container of `run -d` only when a user kills it.
func (h *host) killed() error {
	return step("ctr task kill detaches what ran with -d", func() error {
		if _, err := h.ctrRun("killed", []string{"-d"}); err != nil {
			return err
		}
		if _, err := h.ctr("task", "kill", "--signal", "KILL", "killed"); err != nil {
			return err
		}
		return errors.Join(eventually(h.empty), h.end("killed"))
	})
}

// gc runs the README's command.
func gc(network string, env ...string) error {
	cniExec := filepath.Join(pluginDir, "cni-exec")
	_, _, err := sandbox.Call{Argv: []string{cniExec, "gc", network}, Env: env}.Run()
	return err
}
