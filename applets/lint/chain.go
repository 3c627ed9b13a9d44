package lint

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/spell"
	"github.com/cnibox/cnibox/spec"
)

// PluginDirs are the directories in which runtimes look for plugins: containerd, CRI-O and nerdctl;
// podman of Debian; podman and CRI-O of Fedora.
var PluginDirs = [...]string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}

// missing notes a plugin that is not built in, if its name is misspelled or the directories of
// external plugins do not have it.
func (c *checker) missing(p *chain.Plugin, plugin, key string) {
	if c.isOurs(plugin) {
		return
	}
	found := func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, plugin))
		return err == nil && info.Mode().IsRegular()
	}
	if slices.ContainsFunc(slices.Concat(c.Path, PluginDirs[:]), found) {
		return
	}
	switch unknown := chain.Misspelled(plugin, c.Applets.Plugins()); {
	case unknown != "":
		c.add(p.From.File, spec.JoinKeys(p.From.Key, key), "%s", unknown)
	case len(c.Path) > 0:
		c.add(p.From.File, spec.JoinKeys(p.From.Key, key), "plugin %q is neither built in nor in %s", plugin, strings.Join(c.Path, ", "))
	}
}

// capabilities notes those that are enabled and that no plugin reads.
func (c *checker) capabilities(p *chain.Plugin) {
	if len(p.Capabilities) == 0 {
		return
	}
	read, all := c.consumed(p)
	for name, enabled := range p.Capabilities {
		if !enabled || all || c.full(p.From.File) || slices.Contains(read, name) {
			continue
		}
		meant := ""
		if near := spell.Nearest(name, read); near != "" {
			meant = fmt.Sprintf(": did you mean %q?", near)
		}
		by := p.Type
		if p.IPAM != "" {
			by += " with " + p.IPAM
		}
		c.note(problem{
			severity: Risk, file: p.From.File, key: spec.JoinKeys(p.From.Key, "capabilities."+name), name: true,
			text: fmt.Sprintf("%s does not use the capability %q%s", by, name, meant),
		})
	}
}

// fold lints the keys of a folded list, and notes capabilities that reach no plugin of it, or that it
// keeps from one.
func (c *checker) fold(l *chain.List, f *chain.Plugin) {
	builtIn, ok := c.Applets.Plugin(chain.FoldType)
	if !ok {
		return
	}
	c.pluginKeys(f, &builtIn)
	declared := make(map[string]bool)
	for i := range l.Plugins {
		m := &l.Plugins[i]
		if m.From.File != f.From.File || !strings.HasPrefix(m.From.Key, spec.JoinKeys(f.From.Key, "plugins[")) {
			continue
		}
		for name, enabled := range ownCapabilities(m) {
			declared[name] = declared[name] || enabled
			if enabled && !f.Capabilities[name] {
				c.note(problem{
					severity: Risk, file: m.From.File, key: spec.JoinKeys(m.From.Key, "capabilities."+name), name: true,
					text: fmt.Sprintf("%s does not get %q, since the %q around it does not have the capability", m.Type, name, chain.FoldType),
				})
			}
		}
	}
	for name, enabled := range f.Capabilities {
		if enabled && !declared[name] {
			c.note(problem{
				severity: Risk, file: f.From.File, key: spec.JoinKeys(f.From.Key, "capabilities."+name), name: true,
				text: fmt.Sprintf("none of its plugins has the capability %q", name),
			})
		}
	}
}

// ownCapabilities returns those of a plugin's configuration; a member of a folded list gets no others
// than that has.
func ownCapabilities(p *chain.Plugin) map[string]bool {
	var own chain.Member
	_ = json.Unmarshal(p.Conf(), &own) // it was loaded
	return own.Capabilities
}

// consumed returns the capabilities that a plugin, its IPAM plugin and its delegates read. all
// reports that one of them is external, and may read any.
func (c *checker) consumed(p *chain.Plugin) (names []string, all bool) {
	plugins := []string{p.Type, p.IPAM}
	if delegated := c.delegated(p.Type); len(delegated) > 0 {
		members, _ := spec.Members(p.Conf()) // it is an object
		for _, d := range delegated {
			plugins = append(plugins, d.named(members))
		}
	}
	for _, plugin := range plugins {
		if plugin == "" {
			continue
		}
		verbs, ok := c.Applets.Plugin(plugin)
		if !ok {
			return nil, true
		}
		if verbs.Interface {
			names = append(names, "dns")
		}
		if verbs.MAC {
			names = append(names, "mac")
		}
		names = append(names, c.decoded(plugin)...)
	}
	return names, false
}

// decoded returns the capabilities that a built-in plugin decodes.
func (c *checker) decoded(plugin string) (names []string) {
	conf := c.conf(plugin)
	if conf == nil {
		return nil
	}
	for _, t := range c.keysOf(conf).types("runtimeConfig") {
		if inner, ok := read(t); ok {
			names = append(names, c.keysOf(inner).names()...)
		}
	}
	return names
}

// Decoding returns the built-in plugins that decode a capability.
func (l *Linter) Decoding(capability string) (plugins []string) {
	c := &checker{Linter: l, fields: map[reflect.Type][]field{}}
	for _, plugin := range l.Applets.Plugins() {
		if slices.Contains(c.decoded(plugin), capability) {
			plugins = append(plugins, plugin)
		}
	}
	return plugins
}

// order checks the order of the plugins of a list.
func (c *checker) order(members []*member) {
	var makes *member
	for i, m := range members {
		if m.builtIn == nil {
			return // it is not known what an external plugin creates
		}
		key := spec.JoinKeys(m.From.Key, "type")
		switch v := m.builtIn; {
		case v.IPAM:
			c.add(m.From.File, key, `%s gives addresses to another plugin: name it in the "type" of that one's "ipam"`, m.Type)
		case v.Chained && i == 0:
			c.add(m.From.File, key, "%s works on what an earlier plugin made, and is the first of the list", m.Type)
		case v.Chained && makes == nil && slices.ContainsFunc(members[i:], makesInterface):
			c.add(m.From.File, key, "%s is before the plugin that makes the interface: put it behind that", m.Type)
		case v.Interface && makes != nil:
			c.add(m.From.File, key, "%s makes the interface that %s has made already: a list has one of them", m.Type, makes.Type)
		case v.Interface:
			makes = m
		}
	}
}

// makesInterface reports whether a plugin creates CNI_IFNAME.
func makesInterface(m *member) bool { return m.builtIn != nil && m.builtIn.Interface }
