package cniexec

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

func noEnv(string) string { return "" }

func TestParse(t *testing.T) {
	env := func(key string) string {
		return map[string]string{"CNI_IFNAME": "net1", "CNI_CONTAINERID": "id", "NETCONFPATH": "/conf", "CNI_PATH": "/bin"}[key]
	}
	l, a, err := parse(applet.Process{Getenv: env, Args: []string{
		"-o", "json", "del", "-i", "eth5", "net", "/ns", "--keep-going", "--timeout=2m", "--", "x", "--all",
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := flags{
		confDir: "/conf", path: "/bin", output: outputJSON,
		timeout: 2 * time.Minute,
	}
	if !reflect.DeepEqual(l.flags, want) {
		t.Errorf("got %+v, want %+v", l.flags, want)
	}
	del := a.(*delCall)
	if want := (link{"eth5", "id"}); del.link != want || !del.keepGoing || del.delete {
		t.Errorf("got %+v, %v, %v", del.link, del.keepGoing, del.delete)
	}
	if got := strings.Join(l.operands, " ") + "|" + strings.Join(l.command, " "); got != "del net /ns|x --all" {
		t.Errorf("got operands and command %q", got)
	}
	if _, a, err := parse(applet.Process{Getenv: noEnv, Args: []string{"gc", "net", "--keep", "a/eth0", "--keep=b/eth1"}}); err != nil || !slices.Equal(a.(*gcCall).keep, []string{"a/eth0", "b/eth1"}) {
		t.Errorf("--keep is %+v, %v", a, err)
	}
	if l, a, _ := parse(applet.Process{Getenv: noEnv}); a != nil || l.confDir != "/etc/cni/net.d" || l.command != nil {
		t.Errorf("defaults: %+v, %q", l.flags, l.command)
	}
	if _, a, _ := parse(applet.Process{Getenv: noEnv, Args: []string{"get"}}); a.(*getCall).link != (link{ifName: "eth0"}) {
		t.Errorf("defaults: %+v", a)
	}
	for _, args := range [][]string{{"--nosuch"}, {"-i"}, {"--retries", "x"}, {"--timeout", "-1s"}, {"--all=maybe"}, {"-x=1"}, {"-i", "a", "--ifname=b"}, {"--all", "--all"}} {
		if _, _, err := parse(applet.Process{Args: args, Getenv: noEnv}); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// The help of a verb is at most as wide as a terminal, has two examples, and names each flag of the
// verb.
func TestHelpOfVerbs(t *testing.T) {
	texts := map[string]string{"": overview(), "flags": helpOfFlags(new(flags).declare(nil, noEnv))}
	if n := strings.Count(texts[""], "\n"); n > 30 {
		t.Errorf("the first screen has %d lines", n)
	}
	for _, v := range shownVerbs() {
		if v.group != "" && !strings.Contains(texts[""], "  "+v.name+" ") {
			t.Errorf("the first screen does not name %s", v.name)
		}
		set := v.declared(noEnv)
		texts[v.name] = v.help(set)
		for _, flag := range ownFlags(set) {
			if !strings.Contains(texts[v.name], "--"+flag.Name) {
				t.Errorf("the help of %s does not name --%s", v.name, flag.Name)
			}
			if !repeatable(flag) && strings.Contains(flag.Usage, "repeatable") {
				t.Errorf("%s: --%s is refused a second time, and its help says that it is repeatable", v.name, flag.Name)
			}
		}
		if n := strings.Count(texts[v.name], "\n"); n > 25 {
			t.Errorf("%s: %d lines", v.name, n)
		}
		if len(v.examples) != 2 || v.summary == "" {
			t.Errorf("%s has %d examples and the summary %q", v.name, len(v.examples), v.summary)
		}
		for _, other := range shownVerbs() {
			if strings.Contains(texts[v.name], " of "+other.name+":") {
				t.Errorf("the help of %s has what is for %s alone:\n%s", v.name, other.name, texts[v.name])
			}
		}
	}
	for name, text := range texts {
		for line := range strings.Lines(text) {
			if line = strings.TrimSuffix(line, "\n"); len([]rune(line)) > tty.Width || strings.HasSuffix(line, " ") {
				t.Errorf("%s: %q is too long or ends with a blank", name, line)
			}
		}
	}
	for _, flag := range commonFlags(new(flags).declare(nil, noEnv)) {
		if !strings.Contains(texts["flags"], "--"+flag.Name) {
			t.Errorf("the help of flags does not name --%s", flag.Name)
		}
	}
}

func TestCNIArgs(t *testing.T) {
	tests := map[string]struct {
		want [][2]string
		err  bool
	}{
		"":          {nil, false},
		"A=1;B=x=y": {[][2]string{{"A", "1"}, {"B", "x=y"}}, false},
		";A=;":      {[][2]string{{"A", ""}}, false},
		"A":         {nil, true},
		"=1":        {nil, true},
	}
	for s, tt := range tests {
		got, err := cniArgs(s)
		if (err != nil) != tt.err || !reflect.DeepEqual(got, tt.want) && !tt.err {
			t.Errorf("%q: got %q, %v, want %q", s, got, err, tt.want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	tests := map[string]struct {
		env     string
		publish []string
		want    string // "": an error
	}{
		"none":      {"", nil, `null`},
		"given":     {`{"mac":"x"}`, nil, `{"mac":"x"}`},
		"published": {"", []string{"8080:80"}, `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`},
		"both": {`{"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"udp"}]}`, []string{"127.0.0.1:53:54/udp", "[::1]:3:4"},
			`{"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"udp"},` +
				`{"hostPort":53,"containerPort":54,"protocol":"udp","hostIP":"127.0.0.1"},{"hostPort":3,"containerPort":4,"protocol":"tcp","hostIP":"::1"}]}`},
		"attached": {"", []string{"=8080:80"}, `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`},
		"a range": {"", []string{"65534-65535:1-2/udp"}, `{"portMappings":[{"hostPort":65534,"containerPort":1,"protocol":"udp"},` +
			`{"hostPort":65535,"containerPort":2,"protocol":"udp"}]}`},
		"ranges that differ":   {"", []string{"1-2:1-3"}, ""},
		"a range backwards":    {"", []string{"2-1:2-1"}, ""},
		"range without an end": {"", []string{"1-:1-"}, ""},
		"a range too far":      {"", []string{"65535-65536:1-2"}, ""},
		"in capitals":          {"", []string{"1:2/SCTP"}, `{"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"sctp"}]}`},
		"not an object":        {`[]`, nil, ""},
		"one port":             {"", []string{"80"}, ""},
		"port 0":               {"", []string{"0:80"}, ""},
		"big port":             {"", []string{"65536:80"}, ""},
		"words":                {"", []string{"a:b"}, ""},
		"no address":           {"", []string{"localhost:1:2"}, ""},
		"no protocol":          {"", []string{"1:2/icmp"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var args []string
			for _, p := range tt.publish {
				if args = append(args, "-p", p); p[0] == '=' {
					args = []string{"-p" + p[1:]}
				}
			}
			_, a, err := parse(applet.Process{Args: append([]string{"run"}, args...), Getenv: noEnv})
			var caps map[string]json.RawMessage
			if err == nil {
				caps, err = capArgs(tt.env)
			}
			if err == nil {
				caps, err = a.(*runCall).capabilities(caps)
			}
			if err != nil {
				if tt.want != "" {
					t.Error(err)
				}
				return
			}
			if got, _ := json.Marshal(caps); string(got) != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Root does not get the hint to run as root.
func TestHintToRunAsRoot(t *testing.T) {
	c := &call{}
	got := c.hint(fmt.Errorf("bring lo up: %w", os.ErrPermission), spec.CodeInternal)
	if hint := strings.Contains(got, "as root"); hint != (os.Geteuid() != 0) {
		t.Errorf("user %d gets the hint %q", os.Geteuid(), got)
	}
}

func TestNthNameCountsUp(t *testing.T) {
	if nthName("eth0", 2) != "eth2" || nthName("net1", 0) != "net1" || nthName("wan", 1) != "wan1" || nthName("net1", 1) != "net2" {
		t.Error("names do not count up")
	}
}
