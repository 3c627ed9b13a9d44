package messages

import (
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// lintDiffers has the messages about a configuration that lint does not repeat, and why.
var lintDiffers = map[string]string{
	"bad route":                              "lint writes the key in double quotes",
	"bridge is another link":                 "lint does not look at the kinds of links",
	"host device missing":                    "lint does not look for devices",
	"missing master":                         "lint looks for the link itself",
	"mtu too large":                          "lint does not know the master's MTU",
	"network name missing":                   "lint names the key alone",
	"unknown external plugin without a path": "lint always has directories of plugins",
}

// lintFaults compares an error about a configuration with what lint finds: the error has all words
// of each finding and, if it is of cni-exec, the place. lint also finds that a chained plugin is
// alone.
func (h *host) lintFaults(m message, a answer) (list []string) {
	dir, plugin := "net.d", strings.HasSuffix(m.argv, " ADD") && a.code == spec.CodeConfig
	if lintDiffers[m.name] != "" || !plugin && !strings.HasPrefix(m.where, listFile) {
		return nil
	}
	if plugin {
		dir = "lint"
		h.write("lint/demo.conf", m.conf, 0o644)
	}
	_, stdout, stderr, err := h.Process(exec.Command(filepath.Join(h.bin, "cni-exec"), "lint", h.Path(dir)), "")
	h.NoError(err)
	matching := 0
	for finding := range strings.Lines(h.normalize(stdout + stderr)) {
		place, text, _ := strings.Cut(strings.TrimSuffix(finding, "\n"), ": ")
		same := plugin || strings.Contains(a.text, place)
		for part := range strings.SplitSeq(text, "; ") {
			same = same && strings.Contains(a.text, part)
		}
		switch {
		case same:
			matching++
		case !plugin || !strings.HasSuffix(text, "is the first of the list"):
			list = append(list, "lint says: "+finding)
		}
	}
	if matching == 0 {
		list = append(list, "lint does not say this")
	}
	return list
}
