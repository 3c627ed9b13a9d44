package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Each CVE of the reference plugins and of Kubernetes that matters here has a test that names it.
func TestCVEsHaveTests(t *testing.T) {
	want := map[string]bool{"CVE-2019-9946": true, "CVE-2020-8558": true, "CVE-2020-10749": true, "CVE-2021-20206": true, "CVE-2025-67499": true}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "cve_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		for id := range want {
			if strings.Contains(string(text), "// "+id+":") {
				delete(want, id)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for id := range want {
		t.Errorf("no test has a comment that begins with %s:", id)
	}
}

// CVE-2020-10749: every link that a plugin makes on the host has accept_ra=0, whatever the host's
// default is: a container could send router advertisements.
func TestKernelRouterAdvertisements(t *testing.T) {
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		if !applettest.Makes(plugin) {
			return
		}
		t.Parallel()
		f.NeedChain(t)
		w := newWorld(t)
		for _, key := range []string{"all", "default"} {
			if err := w.NS.SetSysctl("net/ipv6/conf/"+key+"/accept_ra", "2"); err != nil {
				kerneltest.Need(t, "CONFIG_IPV6", func() error { return err })
			}
		}
		f.furnish(w)
		old := map[string]bool{}
		w.eachLink(func(l rtnl.Link) { old[l.Name] = true })
		a := w.attach(plugin, f.enter(w, w.Container("ctr")), w.inProcess)
		w.eachLink(func(l rtnl.Link) {
			if value, err := w.NS.Sysctl("net/ipv6/conf/" + l.Name + "/accept_ra"); !old[l.Name] && (value != "0" || err != nil) {
				t.Errorf("accept_ra of %s is %q, %v", l.Name, value, err)
			}
		})
		a.must(spec.Del, a.last())
	})
}

func (w *world) eachLink(fn func(rtnl.Link)) {
	w.Helper()
	links, err := kerneltest.Dial(w.T, w.NS).Links()
	if err != nil {
		w.Fatal(err)
	}
	for _, l := range links {
		fn(l)
	}
}
