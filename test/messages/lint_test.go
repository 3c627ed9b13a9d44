package messages

import (
	"os/exec"
	"path/filepath"
	"strings"
)

// lintDiffers has the messages about a place in the configuration that lint does not repeat, and
// why.
var lintDiffers = map[string]string{
	"unknown external plugin without a path": "lint always has directories of plugins",
	"bad route":                              "lint writes the key in double quotes",
	"missing master":                         "lint looks for the link itself",
	"bridge is another link":                 "lint does not look at the kinds of links",
}

// lintFaults compares an error about a place in the configuration with the finding of lint: the
// place is the same, and the error has all of its words.
func (h *host) lintFaults(m message, a answer) (list []string) {
	if !strings.HasPrefix(m.where, listFile) || lintDiffers[m.name] != "" {
		return nil
	}
	_, stdout, stderr, err := h.Process(exec.Command(filepath.Join(h.bin, "cni-exec"), "lint", h.Path("net.d")), "")
	h.NoError(err)
	found := strings.TrimSuffix(h.normalize(stdout), "\n")
	place, text, _ := strings.Cut(strings.TrimPrefix(found, listFile), ": ")
	if stderr != "" || place == "" || strings.Contains(text, "\n") {
		return []string{"lint has not one finding: " + found + stderr}
	}
	for _, part := range append(strings.Split(text, "; "), listFile+place) {
		if !strings.Contains(a.text, part) {
			list = append(list, "lint says: "+found)
		}
	}
	return list
}
