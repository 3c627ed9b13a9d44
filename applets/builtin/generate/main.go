// Command generate writes the table of package builtin from a list of names: `go generate ./applets/builtin`.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		panic("usage: generate LIST")
	}
	list, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	for name, text := range files(strings.Fields(string(list))) {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			panic(err)
		}
	}
}

const head = "// Code generated from testdata/applets.golden; DO NOT EDIT.\n\n"

// files returns the generated files by name. The tool cnibox is always there.
func files(names []string) map[string]string {
	all := map[string]string{}
	var table strings.Builder
	for _, name := range names {
		pkg := strings.ReplaceAll(name, "-", "")
		tag := "no_" + strings.ReplaceAll(name, "-", "_")
		constraint := fmt.Sprintf("//go:build !%s\n\n", tag)
		if name == "cnibox" {
			constraint = ""
		} else {
			all["without_"+pkg+".go"] = fmt.Sprintf("%s//go:build %s\n\npackage builtin\n\nvar %sApplet = &LeftOut\n", head, tag, pkg)
		}
		all["with_"+pkg+".go"] = fmt.Sprintf("%s%spackage builtin\n\nimport \"github.com/cnibox/cnibox/applets/%s\"\n\nvar %[3]sApplet = &%[3]s.Applet\n", head, constraint, pkg)
		fmt.Fprintf(&table, "\t%sApplet,\n", pkg)
	}
	all["table.go"] = head + "package builtin\n\nimport \"github.com/cnibox/cnibox/applets/applet\"\n\n" +
		"// Table is in the order of names, and data that the linker lays out: nothing runs at the start of a plugin.\n" +
		"var Table = [...]*applet.Applet{\n" + table.String() + "}\n"
	return all
}
