// Package twin compares the reference plugins with ours: for each configuration of a corpus
// both get their own host and containers and call the same verbs, and the resulting links,
// addresses, routes, rules, sysctls, qdiscs, files and results are compared line by line.
// Deliberate differences are in a list, each with its reason. What the reference does is recorded once
// a version, see [Recording]; it need not be here to be compared with.
//
// A file of the corpus holds cases. A case is a title, lines with what the run needs, and a
// configuration list as runtimes have it, where $DIR is an empty directory of the run and $NETNS the
// first container's path:
//
//	-- two containers --
//	host link add m0 type veth peer name p0
//	containers 2
//	{"cniVersion":"1.0.0","name":"demo","plugins":[{"type":"macvlan","master":"m0"}]}
//
// The lines are:
//
//	needs NAME…             features of the kernel, see Probe
//	host WORDS…             a line of ip-batch(8) for the host; container likewise
//	file NAME TEXT          below $DIR
//	args K=V;K=V            CNI_ARGS
//	capabilities JSON       capability arguments, for plugins that ask for them
//	containers N            number of containers, attached one after another; default 1
//	dhcp                    a server on the link srv0 of the host, and a daemon at $DIR/run/dhcp.sock
//	replace                 also test live replacement: see Replace
//
// It is for tests only.
package twin

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Case is one configuration and the requirements of its run.
type Case struct {
	Name       string // name of the file, a slash, and the title
	Version    string
	Network    string
	Plugins    []map[string]json.RawMessage
	Needs      []string
	Host, Cont []string // lines of ip-batch(8)
	Files      [][2]string
	Args       string
	Caps       map[string]json.RawMessage
	Containers int
	DHCP       bool
	Replace    bool

	text string // all of it, to tell values in it from generated ones
}

// notCases are the text files that are not part of the corpus, for [LoadDifferences].
var notCases = []string{"differences.txt", "replacement.txt"}

// Load reads the corpus, in the order of file names.
func Load(dir string) (cases []Case, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, file := range files {
		if slices.Contains(notCases, filepath.Base(file)) {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		group := strings.TrimSuffix(filepath.Base(file), ".txt")
		parts := strings.Split("\n"+string(b), "\n-- ")
		for _, part := range parts[1:] {
			title, body, ok := strings.Cut(part, " --\n")
			c := Case{Name: group + "/" + title, Containers: 1, text: body}
			if !ok || seen[c.Name] {
				return nil, fmt.Errorf("%s: title %.40q", file, title)
			}
			seen[c.Name] = true
			if err := c.parse(body); err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			cases = append(cases, c)
		}
	}
	return cases, nil
}

// parse reads the lines up to the configuration, which is the rest.
func (c *Case) parse(body string) error {
	for !strings.HasPrefix(body, "{") {
		line, rest, ok := strings.Cut(body, "\n")
		if !ok {
			return fmt.Errorf("no configuration after %q", line)
		}
		word, value, _ := strings.Cut(line, " ")
		if err := c.set(word, value); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		body = rest
	}
	conf := struct {
		CNIVersion, Name *string
		Plugins          *[]map[string]json.RawMessage
	}{&c.Version, &c.Network, &c.Plugins}
	if err := json.Unmarshal([]byte(body), &conf); err != nil {
		return err
	}
	for _, p := range *conf.Plugins {
		if string(p["type"]) == `"portmap"` && p["dataDir"] == nil {
			return errors.New("portmap without dataDir: plans of a case, which run at once, would share the default directory")
		}
		if string(p["type"]) == `"firewall"` { // likewise; the reference, which was asked without, does not read it
			p["dataDir"] = json.RawMessage(`"$DIR/run/firewall"`)
		}
	}
	return nil
}

// set parses one line before the configuration.
func (c *Case) set(word, value string) (err error) {
	switch word {
	case "", "#":
	case "needs":
		c.Needs = strings.Fields(value)
	case "host":
		c.Host = append(c.Host, value)
	case "container":
		c.Cont = append(c.Cont, value)
	case "file":
		name, text, _ := strings.Cut(value, " ")
		c.Files = append(c.Files, [2]string{name, strings.ReplaceAll(text, `\n`, "\n")})
	case "args":
		c.Args = value
	case "capabilities":
		return json.Unmarshal([]byte(value), &c.Caps)
	case "containers":
		c.Containers, err = strconv.Atoi(value)
	case "dhcp":
		c.DHCP = true
	case "replace":
		c.Replace = true
	default:
		return fmt.Errorf("no such word")
	}
	return err
}

// Types returns the plugins that the case runs, including IPAM plugins.
func (c *Case) Types() (types []string) {
	for _, p := range c.Plugins {
		var inner struct{ Type string }
		for _, raw := range []json.RawMessage{p["type"], p["ipam"]} {
			var name string
			if json.Unmarshal(raw, &name) == nil && name != "" {
				types = append(types, name)
			} else if json.Unmarshal(raw, &inner) == nil && inner.Type != "" {
				types = append(types, inner.Type)
			}
		}
	}
	return types
}
