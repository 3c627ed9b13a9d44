package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

// buildah builds with podman's configuration, networks and image. Each RUN is a container with its
// own network, which is detached after it. (buildah 1.28 has no options for other directories of
// plugins and networks.)
func (h *host) buildah() error {
	return walk(
		stage{"buildah run, in the default network and in one of podman's", h.buildahRun},
		stage{"buildah build: each RUN has a network, and the image is made", h.buildahBuild},
		stage{"nothing of it is left behind", func() error { return eventually(h.empty) }},
	)
}

// runBuildah runs buildah and returns its stdout.
func runBuildah(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"buildah"}, args...), Env: os.Environ()}.Run()
	return strings.TrimSpace(string(out)), err
}

// asksOutside is a shell command whose output [namesFound] checks.
var asksOutside = asksOutsideBy("eth0")

func asksOutsideBy(ifname string) string {
	return fmt.Sprintf("ip -4 address show dev %s && nslookup %s %s", ifname, name, outsideAddr)
}

// namesFound checks that a container had an address with this prefix, and reached the name server
// outside.
func namesFound(out, addr string) error {
	if !strings.Contains(out, "inet "+addr) || !strings.Contains(out, nameAddr.String()) {
		return fmt.Errorf("want an address %s… and %s: %s", addr, nameAddr, out)
	}
	return nil
}

func (h *host) buildahRun() error {
	id, err := runBuildah("from", "--pull-never", "--cgroup-parent", h.cgroup+"/buildah", image)
	if err != nil {
		return err
	}
	for _, in := range []struct {
		addr  string
		flags []string
	}{{"10.87.", nil}, {"10.86.", []string{"--network", "dual"}}} {
		args := append([]string{"run", "--runtime", "runc"}, in.flags...)
		out, err := runBuildah(append(args, id, "sh", "-c", asksOutside)...)
		if err != nil {
			return err
		}
		if err := namesFound(out, in.addr); err != nil {
			return err
		}
	}
	_, err = runBuildah("rm", id)
	return err
}

// buildahBuild builds an image whose second layer has the output of [asksOutside].
func (h *host) buildahBuild() error {
	dir := filepath.Join(work, "build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("FROM %s\nRUN ip route\nRUN %s\n", image, asksOutside)
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(text), 0o644); err != nil {
		return err
	}
	out, err := runBuildah("build", "--pull-never", "--runtime", "runc", "--cgroup-parent", h.cgroup+"/buildah", "-t", "built", dir)
	if err != nil {
		return err
	}
	if err := namesFound(out, "10.87."); err != nil {
		return err
	}
	_, err = runBuildah("rmi", "built")
	return err
}
