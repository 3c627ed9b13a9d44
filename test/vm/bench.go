package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	benchPath   = "github.com/cnibox/cnibox/test/bench"
	benchBinary = "bin/cnibox" // the binary that make build leaves
	benchDir    = "/opt/bench" // in a guest: the binary, bare and peak
)

// bench builds the bench and its programs in dir, and returns the suite for a guest, and additional
// files. [hostFiles] has the reference plugins.
func bench(ctx context.Context, dir string) (suites []suite, files map[string]string, err error) {
	if _, err := os.Stat(benchBinary); err != nil {
		return nil, nil, fmt.Errorf("%w (`make build` makes it)", err)
	}
	files = map[string]string{benchDir + "/cnibox": benchBinary}
	for _, name := range []string{"", "bare", "peak"} {
		out := filepath.Join(dir, "bench-"+name)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, filepath.Join(benchPath, name))
		cmd.Dir, cmd.Env = "test", append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, nil, fmt.Errorf("build the bench: %w", err)
		}
		if name != "" {
			files[benchDir+"/"+name] = out
		}
	}
	return []suite{{benchPath, "test/bench", filepath.Join(dir, "bench-")}}, files, nil
}

// benchFlags returns the bench's flags in a guest.
func benchFlags(more string) []string {
	return append([]string{"-bin=" + benchDir + "/cnibox", "-tools=" + benchDir}, strings.Fields(more)...)
}
