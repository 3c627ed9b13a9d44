package applets

import (
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
)

func TestLookup(t *testing.T) {
	for name, want := range map[string]string{
		"loopback":              "loopback",
		"buildkit-cni-loopback": "loopback",
		"cnv-loopback":          "loopback",
		"cnibox":                "cnibox",
		"a-cnibox":              "cnibox",
		"-loopback":             "loopback",
		"loopbacks":             "",
		"xloopback":             "",
		"loopback-x":            "",
		"Loopback":              "",
		"":                      "",
		".":                     "",
		"/":                     "",
	} {
		a, ok := Lookup(name)
		if ok != (want != "") || ok && a.Name != want {
			t.Errorf("Lookup(%q) = %v, %t, want %q", name, a, ok, want)
		}
	}
}

// The longest name matches: buildkit-cni-host-local is host-local, not local.
func TestLookupLongest(t *testing.T) {
	for _, order := range [][]string{{"local", "host-local"}, {"host-local", "local"}} {
		var table applet.Table
		for _, name := range order {
			table = append(table, &applet.Applet{Name: name})
		}
		if a, ok := table.Lookup("buildkit-cni-host-local"); !ok || a.Name != "host-local" {
			t.Errorf("in the order %q: got %v, %t", order, a, ok)
		}
	}
}

func TestLookupPluginIsNoTool(t *testing.T) {
	if _, ok := All().Plugin("loopback"); !ok {
		t.Error("loopback is not found")
	}
	if _, ok := All().Plugin("cni-exec"); ok {
		t.Error("cni-exec is a tool and counts as a plugin")
	}
	if _, ok := All().Plugin("cnibox"); !ok {
		t.Error("cnibox is not found as the plugin of folded lists")
	}
}

// Every applet has a summary and a help, in the order of names. Every plugin has ADD and DEL.
func TestApplets(t *testing.T) {
	last := ""
	for _, a := range All() {
		switch {
		case a.Name <= last:
			t.Errorf("%s comes after %s", a.Name, last)
		case a.Summary == "" || a.Help == "" && a.Main == nil: // a tool prints its own help
			t.Errorf("%s has no summary or no help", a.Name)
		case a.Main == nil && (a.Plugin == nil || a.Plugin().Add == nil):
			t.Errorf("%s is neither a plugin nor a tool", a.Name)
		case a.Main == nil && a.Plugin().Del == nil:
			t.Errorf("%s has no DEL", a.Name)
		}
		last = a.Name
	}
}
