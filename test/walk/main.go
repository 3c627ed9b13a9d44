// Command walk counts what a reader of a call has to follow: the functions of ours that it enters, the files and
// packages that these are in, and how many of our frames are above its first request of each kind.
//
//	cd test && go run ./walk -cover ../bin/cnibox-cover -plain ../bin/cnibox-plain
//
// `make walk` builds both: one with the counters of `go build -cover`, one without inlining, whose system calls
// strace(1) prints with their stacks.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

func main() {
	covered := flag.String("cover", "../bin/cnibox-cover", "a binary with counters")
	plain := flag.String("plain", "../bin/cnibox-plain", "a binary without inlining")
	flag.Parse()
	code, err := run(*covered, *plain)
	switch {
	case errors.Is(err, sandbox.ErrPrivilege):
		fmt.Println("SKIPPED: walk:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "walk:", err)
		code = 1
	}
	os.Exit(code)
}

func run(covered, plain string) (code int, err error) {
	if !sandbox.Inside() {
		return sandbox.Start()
	}
	if err := sandbox.Setup(); err != nil {
		return 0, err
	}
	fmt.Println("| call | functions | files | packages | frames to the link | to the lease | to nf_tables |\n|---|--:|--:|--:|--:|--:|--:|")
	for i, c := range calls {
		counted, err := c.count(covered, fmt.Sprint("count", i))
		if err != nil {
			return 0, err
		}
		traced, err := c.trace(plain, fmt.Sprint("trace", i))
		if err != nil {
			return 0, err
		}
		fmt.Printf("| %s | %s | %s |\n", c.name, counted, traced)
	}
	return 0, nil
}

// A call is one that is walked, after those that prepare it.
type call struct {
	name    string
	plugin  string
	verb    string
	before  []string // verbs of the same container
	another bool     // another container is attached already
}

var calls = []call{
	{name: "`bridge` ADD, the first", plugin: "bridge", verb: "ADD"},
	{name: "`bridge` ADD, the second container", plugin: "bridge", verb: "ADD", another: true},
	{name: "its CHECK", plugin: "bridge", verb: "CHECK", before: []string{"ADD"}, another: true},
	{name: "its DEL", plugin: "bridge", verb: "DEL", before: []string{"ADD"}, another: true},
	{name: "`portmap` ADD, one port", plugin: "portmap", verb: "ADD", another: true},
	{name: "its DEL", plugin: "portmap", verb: "DEL", before: []string{"ADD"}, another: true},
}

const config = `{"cniVersion": "1.0.0", "name": "NAME", %s
 "ipam": {"type": "host-local", "subnet": "10.5.0.0/24", "dataDir": "/run/NAME"}}`

var plugins = map[string]string{
	"bridge":  `"type": "bridge", "bridge": "NAME", "isGateway": true, "ipMasq": true,`,
	"portmap": `"type": "portmap", "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},`,
}

// count returns how many functions, files and packages the call enters.
func (c call) count(bin, name string) (string, error) {
	counters := filepath.Join("/run", name+".counters")
	if err := os.Mkdir(counters, 0o700); err != nil {
		return "", err
	}
	if err := c.make(bin, name, nil, []string{"GOCOVERDIR=" + counters}); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "tool", "covdata", "func", "-i="+counters).Output()
	if err != nil {
		return "", fmt.Errorf("go tool covdata: %w", err)
	}
	functions, files, packages := 0, map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] == "total" || f[2] == "0.0%" {
			continue
		}
		file, _, _ := strings.Cut(f[0], ":")
		functions++
		files[file], packages[filepath.Dir(file)] = true, true
	}
	return fmt.Sprintf("%d | %d | %d", functions, len(files), len(packages)), nil
}

// ours is a frame of a function of the product, or of its main; methodValue is one that the compiler puts before a method
// that is called as a value, and that no reader meets.
var (
	ours        = regexp.MustCompile(`\((github\.com/cnibox/|main\.)`)
	methodValue = regexp.MustCompile(`-fm\+0x`)
)

// firsts are the requests whose frames are counted, as strace prints them: RTM_NEWLINK, the link(2) of a lease, and any to
// nf_tables. The type of a netlink message is its third 16 bit word (little endian), of nfnetlink with the subsystem above.
var firsts = []*regexp.Regexp{
	regexp.MustCompile(`^[0-9]+ +write\([0-9]+<NETLINK:\[ROUTE.*>, "(\\x..){4}\\x10\\x00`),
	regexp.MustCompile(`^[0-9]+ +linkat\(`),
	regexp.MustCompile(`^[0-9]+ +write\([0-9]+<NETLINK:\[NETFILTER.*>, "(\\x..){5}\\x0a`),
}

// trace returns the frames of ours at the first request of each kind; a dash where there is none.
func (c call) trace(bin, name string) (string, error) {
	log := filepath.Join("/run", name+".strace")
	if err := c.make(bin, name, []string{"strace", "-f", "-k", "-yy", "-xx", "-e", "trace=write,linkat", "-e", "signal=none", "-o", log}, nil); err != nil {
		return "", err
	}
	text, err := os.ReadFile(log)
	if err != nil {
		return "", err
	}
	frames := make([]int, len(firsts))
	at := -1
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, " >") {
			at = slices.IndexFunc(firsts, func(r *regexp.Regexp) bool { return r.MatchString(line) })
			if at >= 0 && frames[at] > 0 {
				at = -1
			}
		} else if at >= 0 && ours.MatchString(line) && !methodValue.MatchString(line) {
			frames[at]++
		}
	}
	var cells []string
	for _, n := range frames {
		cells = append(cells, strings.Replace(fmt.Sprint(n), "0", "–", 1-min(n, 1)))
	}
	return strings.Join(cells, " | "), nil
}

// make makes the call, through the wrapper, on a network of its own, those before it, and DELs.
func (c call) make(bin, name string, wrapper, env []string) error {
	bins := filepath.Join("/run", name+".bin")
	if err := os.Mkdir(bins, 0o700); err != nil {
		return err
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return err
	}
	for plugin := range maps.Keys(plugins) {
		if err := os.Symlink(bin, filepath.Join(bins, plugin)); err != nil {
			return err
		}
	}
	if err := os.Symlink(bin, filepath.Join(bins, "host-local")); err != nil {
		return err
	}
	one, err := sandbox.NewNetNS(name + "-1")
	if err != nil {
		return err
	}
	defer one.Remove()
	two, err := sandbox.NewNetNS(name + "-2")
	if err != nil {
		return err
	}
	defer two.Remove()
	prev := map[string][]byte{}
	do := func(plugin, verb, id string, ns *sandbox.NetNS, wrapper, env []string) error {
		text := strings.ReplaceAll(fmt.Sprintf(config, plugins[plugin]), "NAME", name)
		if p := prev[id]; p != nil {
			text = strings.Replace(text, "{", `{"prevResult": `+string(p)+`,`, 1)
		}
		out, _, err := sandbox.Call{
			Argv:  slices.Concat(wrapper, []string{filepath.Join(bins, plugin)}),
			Env:   slices.Concat(sandbox.Plugin(verb, id, ns.Path, "eth0", bins), env),
			Stdin: []byte(text),
		}.Run()
		if err == nil && verb == "ADD" {
			prev[id] = out
		}
		return err
	}
	silent := []string{"GOCOVERDIR=/dev/null"} // counters of the walked call alone
	if c.another {
		if err := do("bridge", "ADD", "two", two, nil, silent); err != nil {
			return err
		}
	}
	if c.plugin != "bridge" {
		if err := do("bridge", "ADD", "one", one, nil, silent); err != nil {
			return err
		}
	}
	for _, verb := range c.before {
		if err := do(c.plugin, verb, "one", one, nil, silent); err != nil {
			return err
		}
	}
	if err := do(c.plugin, c.verb, "one", one, wrapper, env); err != nil {
		return err
	}
	for _, plugin := range []string{c.plugin, "bridge"} {
		if err := do(plugin, "DEL", "one", one, nil, silent); err != nil {
			return err
		}
	}
	return nil
}
