package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"cnibox/test/sandbox"
)

// detached: ctr never calls DEL for what it ran with -d. gc finds it by the
// result that the runtime left, and keeps the one that is alive. containerd 1.6
// writes no path of a namespace there; it is in the result.
func (h *host) detached() error {
	text := "ctr run -d leaves its network; cni-exec gc --valid-live takes it away"
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

// end kills a container's task and removes both. The task is removed only after
// its end; ctr's kill does not wait for that.
func (h *host) end(id string) error {
	if _, err := h.ctr("task", "kill", "--signal", "KILL", id); err != nil {
		return err
	}
	err := eventually(func() error {
		tasks, err := h.ctr("task", "ls")
		if err == nil && !strings.Contains(tasks, "STOPPED") {
			err = fmt.Errorf("%s still runs: %s", id, tasks)
		}
		return err
	})
	if err != nil {
		return err
	}
	h.ctr("task", "rm", id) // hands on the exit status of the killed
	_, err = h.ctr("container", "rm", id)
	return err
}

// gc is the README's command.
func gc(network string, env ...string) error {
	cniExec := filepath.Join(pluginDir, "cni-exec")
	_, _, err := sandbox.Call{Argv: []string{cniExec, "gc", "--valid-live", network}, Env: env}.Run()
	return err
}
