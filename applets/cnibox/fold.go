package cnibox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/spec"
)

// backup is the end of the name of the file that --in-place leaves: no runtime reads it.
const backup = ".bak"

// foldCommand writes configuration files as folded lists, or back.
func foldCommand(p applet.Process, verb string, args []string) int {
	inPlace := false
	args, err := parse(args, map[string]*bool{"--in-place": &inPlace}, nil)
	switch {
	case err != nil:
		return usage(p, "%s: %s", verb, err)
	case len(args) == 0:
		return usage(p, "%s needs the file of a network, as /etc/cni/net.d/10-pods.conflist", verb)
	}
	exit := 0
	for _, file := range args {
		if err := rewrite(p, verb, file, inPlace); err != nil {
			p.Complain("cnibox", "%s: %s", verb, err)
			exit = 1
		}
	}
	return exit
}

// rewrite folds or unfolds one file.
func rewrite(p applet.Process, verb, file string, inPlace bool) error {
	l, err := chain.LoadFile(file)
	if err != nil {
		return err
	}
	f := folding{applets: p.Applets, list: l, doc: l.From.Doc, note: func(format string, args ...any) {
		p.Complain("cnibox", "%s: %s", file, fmt.Sprintf(format, args...))
	}}
	change := f.fold
	if verb == "unfold" {
		change = f.unfold
	}
	doc, err := change()
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", file, err)
	case !inPlace:
		_, err = p.Stdout.Write(doc)
		return err
	case bytes.Equal(doc, f.doc):
		return nil
	case f.isSingle() && !isSingle(doc):
		return fmt.Errorf("%s has several plugins and is a list then: write it with `cnibox unfold %s` into a file that ends in .conflist", file, file)
	}
	st, err := os.Lstat(file)
	if err == nil {
		err = disk.Output(file+backup, f.doc, st.Mode())
	}
	if err == nil {
		err = disk.Output(file, doc, st.Mode())
	}
	return err
}

// A folding is one file that is folded or unfolded. All of its text but the plugins stays as it is.
type folding struct {
	applets applet.Table
	list    *chain.List
	doc     []byte
	note    func(format string, args ...any)
}

// isSingle reports whether the file is the configuration of one plugin.
func (f *folding) isSingle() bool { return isSingle(f.doc) }

func isSingle(doc []byte) bool { return plugins(doc) == nil || typeOf(doc) != "" }

// typeOf returns the type of a configuration; empty: it has none.
func typeOf(doc []byte) string {
	var w struct{ Type string }
	_ = json.Unmarshal(doc, &w) // what was loaded has one, or none
	return w.Type
}

// plugins returns the elements of the member plugins.
func plugins(doc []byte) []json.RawMessage {
	var w chain.Fold
	_ = json.Unmarshal(doc, &w)
	return w.Plugins
}

// fold folds each run of at least two plugins of this program.
func (f *folding) fold() ([]byte, error) {
	if f.isSingle() {
		f.note("has one plugin, so there is nothing to fold")
		return f.doc, nil
	}
	f.rewriters()
	var all, run []json.RawMessage
	folded := false
	end := func() {
		if len(run) < 2 {
			all = append(all, run...)
		} else {
			all = append(all, foldOf(run))
			folded = true
		}
		run = nil
	}
	for i, doc := range plugins(f.doc) {
		switch builtIn, ok := f.applets.Plugin(typeOf(doc)); {
		case typeOf(doc) == chain.FoldType:
			f.note("plugins[%d] is a folded list already", i)
		case !ok:
			f.note("plugins[%d], %s, is not of this program: it stays a process of its own", i, typeOf(doc))
		case !builtIn.IPAM:
			run = append(run, doc)
			continue
		}
		end()
		all = append(all, doc)
	}
	end()
	if !folded {
		f.note("there is nothing to fold: it has no two plugins of this program one after the other")
		return f.doc, nil
	}
	return f.replace(all)
}

// foldOf returns a folded list with the capabilities of its members.
func foldOf(run []json.RawMessage) json.RawMessage {
	enabled := map[string]bool{}
	for _, doc := range run {
		var m chain.Member
		_ = json.Unmarshal(doc, &m) // it was loaded
		for name, on := range m.Capabilities {
			if on {
				enabled[name] = true
			}
		}
	}
	text := []byte(`{"type":"` + chain.FoldType + `",`)
	if len(enabled) > 0 {
		names, _ := json.Marshal(enabled) // sorted
		text = fmt.Appendf(text, `"capabilities":%s,`, names)
	}
	return fmt.Appendf(text, `"plugins":[%s]}`, bytes.Join(rawBytes(run), []byte(",")))
}

// rawBytes returns the documents as [bytes.Join] takes them.
func rawBytes(docs []json.RawMessage) (all [][]byte) {
	for _, d := range docs {
		all = append(all, d)
	}
	return all
}

// rewriters notes the programs that write such a file again.
func (f *folding) rewriters() {
	var w struct {
		NerdctlID json.RawMessage
		Plugins   []struct{ Bridge string }
	}
	_ = json.Unmarshal(f.doc, &w)
	bridge := func(name string) bool {
		return slices.ContainsFunc(w.Plugins, func(p struct{ Bridge string }) bool { return strings.HasPrefix(p.Bridge, name) })
	}
	switch {
	case w.NerdctlID != nil:
		f.note("nerdctl writes this file: `nerdctl network inspect` reads its plugins there, and `nerdctl network create` of the name writes it again, unfolded")
	case bridge("cni-podman"):
		f.note("podman writes this file: `podman network inspect` reads its plugins there, and `podman network create` of the name writes it again, unfolded")
	case f.list.Name == "nomad":
		f.note("Nomad makes its network of this name itself: it reads this file for `mode = \"cni/nomad\"` alone")
	}
}

// unfold puts the members of each folded list in its place.
func (f *folding) unfold() ([]byte, error) {
	if len(f.list.Folds) == 0 {
		f.note("has no folded list")
		return f.doc, nil
	}
	if f.isSingle() {
		return f.unfoldSingle()
	}
	var all []json.RawMessage
	for i, doc := range plugins(f.doc) {
		if typeOf(doc) != chain.FoldType {
			all = append(all, doc)
			continue
		}
		if key := lost(doc); key != "" {
			return nil, fmt.Errorf("plugins[%d] has %q, which has no place in the list without it", i, key)
		}
		all = append(all, plugins(doc)...)
	}
	return f.replace(all)
}

// lost returns a key of a folded list that a list of its members cannot have; others are those of lists.
func lost(doc json.RawMessage, others ...string) string {
	members, _ := spec.Members(doc) // it was loaded
	for name := range members {
		if !slices.ContainsFunc(append(others, "type", "capabilities", "plugins"), func(known string) bool { return strings.EqualFold(known, name) }) {
			return name
		}
	}
	return ""
}

// unfoldSingle returns a list.
func (f *folding) unfoldSingle() ([]byte, error) {
	if key := lost(f.doc, "name", "cniVersion"); key != "" {
		return nil, fmt.Errorf("it has %q, which has no place in a list of its plugins", key)
	}
	list, err := spec.Merge(f.doc, nil, "type", "capabilities")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, list, "", "  ")
	return append(out.Bytes(), '\n'), err
}

// replace returns the document with other plugins, in the layout that it has.
func (f *folding) replace(plugins []json.RawMessage) ([]byte, error) {
	n, found := spec.Find(f.doc, "plugins")
	if !found {
		return nil, fmt.Errorf(`%q is missing`, "plugins")
	}
	d := json.NewDecoder(bytes.NewReader(f.doc[n.Value:]))
	var old json.RawMessage
	if err := d.Decode(&old); err != nil {
		return nil, err
	}
	text := append(append([]byte("["), bytes.Join(rawBytes(plugins), []byte(","))...), ']')
	var out bytes.Buffer
	out.Write(f.doc[:n.Value])
	indent, lines := f.indent()
	if lines {
		if err := json.Indent(&out, text, indent, indent); err != nil {
			return nil, err
		}
	} else if err := json.Compact(&out, text); err != nil {
		return nil, err
	}
	out.Write(f.doc[n.Value+int(d.InputOffset()):])
	return out.Bytes(), nil
}

// indent returns what the first member of the document is indented by; false: the document is one line.
func (f *folding) indent() (indent string, lines bool) {
	before, _, _ := bytes.Cut(f.doc, []byte(`"`))
	i := bytes.LastIndexByte(before, '\n')
	if i < 0 {
		return "", false
	}
	return string(before[i+1:]), true
}
