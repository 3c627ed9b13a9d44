package cniexec

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
)

// Each line is completed at its end: a word that has begun, or the next one after a space.
func TestComplete(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"net.d/a.conflist":        `{"cniVersion":"1.1.0","name":"alpha","plugins":[{"type":"loopback"}]}`,
		"net.d/b.conflist":        `{`,
		"results/beta-blue1-eth0": `{"kind":"cniCacheV1","containerId":"blue1","config":"e30=","ifName":"eth0","networkName":"beta"}`,
		"results/alpha-red2-eth0": `{"kind":"cniCacheV1","containerId":"red2","cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","web"]],"config":"eyJjbmlWZXJzaW9uIjoiMS4xLjAifQ==","ifName":"eth0","networkName":"alpha",` +
			`"capabilityArgs":{"portMappings":[{"hostPort":8080,"containerPort":80}]},` +
			`"result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:05","sandbox":"/x"}],"ips":[{"address":"192.0.2.5/24","interface":0},{"address":"2001:db8::5/64","interface":0}]}}`,
		"results/beta-broken-eth0": `{`,
	} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"NETCONFPATH": filepath.Join(dir, "net.d"), "CNIBOX_STATE": dir}
	tests := map[string]string{
		"st":                              "status",
		"x":                               "",
		"add ":                            "alpha beta",
		"add -i eth5 b":                   "beta",
		"add --ifname=eth5 --create b":    "beta",
		"-o json add --publish 80:80 a":   "alpha",
		"add alpha x ":                    "",
		"add alpha x/":                    completeFile,
		"help ad":                         "add",
		"add --if":                        "--ifname",
		"add --kee":                       "",
		"--kee":                           "--keep --keep-going",
		"nosuch --kee":                    "",
		"gc --v":                          "--version",
		"nosuch ":                         "",
		"gc --keep ":                      "blue1/eth0 red2/eth0",
		"gc alpha --keep ":                "red2/eth0",
		"gc --keep=b":                     "--keep=blue1/eth0",
		"del alpha --container-id b":      "",
		"del beta --container-id b":       "blue1",
		"run --net ":                      "alpha beta",
		"run --net=al":                    "--net=alpha",
		"run ":                            "",
		"run -- ":                         completeCommand,
		"add -- ":                         "",
		"add --conf-dir /nonexistent ":    "alpha beta cnibox",
		"add --state-dir /nonexistent ":   "alpha",
		"add --state-dir=relative --if":   "--ifname",
		"add --timeout nonsense --nosuch": "",
		"show tcp":                        "tcp/8080",
		"show 192":                        "192.0.2.5",
		"show 2001:db8:":                  "2001:db8::5",
		"show 02":                         "02:00:00:00:00:05",
		"ls ":                             "alpha beta blue1 default/web red2",
		"ls -o ":                          "json jsonl openmetrics wide",
		"lint -o ":                        "json",
		"add --ip ":                       "", // known addresses are in use
		"run --dns ":                      "",
		"show ":                           "alpha beta blue1 default/web red2",
		"reload def":                      "default/web",
		"del alpha --container-id def":    "",
		"up ":                             completeFile,
		"lint a b ":                       completeDir + " " + completeFile,
		"--path ":                         completeDir,
		"--path=":                         completeDir,
		"--timeout ":                      "",
		"--nosuch=":                       "",
	}
	for line, want := range tests {
		var out, errs bytes.Buffer
		p := applet.Process{Args: append([]string{completeVerb}, strings.Split(line, " ")...), Getenv: func(key string) string { return env[key] }, Stdout: &out, Stderr: &errs}
		exit := run(t.Context(), p)
		var words []string
		for line := range strings.Lines(out.String()) {
			word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			words = append(words, word)
		}
		if got := strings.Join(words, " "); got != want || exit != 0 || errs.Len() > 0 {
			t.Errorf("%q: got %q, exit %d %s, want %q", line, got, exit, errs.String(), want)
		}
	}
}

// The operands in the usage line of a verb determine what is completed.
func TestCompleteOperands(t *testing.T) {
	tests := []struct {
		operands string
		n        int
		want     string
	}{
		{"FILE", 0, completeFile},
		{"FILE|DIR", 0, completeFile + " " + completeDir},
		{"FILE…", 3, completeFile},
		{"[FILE]…", 3, completeFile},
		{"FILE", 1, ""},
		{"[networks]", 0, "networks"},
		{"[--file FILE] DIR -- COMMAND", 0, completeDir},
		{"FILE | --all", 0, completeFile},
		{"FILE | DIR", 0, completeFile + " " + completeDir},
		{"[VERB]", 0, verbs()[0].name},
	}
	for _, tt := range tests {
		c := &completion{call: &call{}}
		if tt.operands == "[VERB]" {
			c.value = tt.want
		}
		c.operand(&verb{operands: tt.operands}, tt.n)
		var words []string
		for _, line := range c.found {
			word, _, _ := strings.Cut(line, "\t")
			words = append(words, word)
		}
		if got := strings.Join(words, " "); got != tt.want {
			t.Errorf("operand %d of %q: got %q, want %q", tt.n, tt.operands, got, tt.want)
		}
	}
}

// Names that a shell would have to quote are omitted.
func TestCompleteOmitsQuotedNames(t *testing.T) {
	c := &completion{}
	for _, name := range []string{"good-1.x_y@z", "a b", "$(reboot)", "`x`", "a;b", "a\nb", ":file", "", "ü", "a'b", "*"} {
		c.add(name, "two\nlines\tand more")
	}
	if got := strings.Join(c.found, "|"); got != "good-1.x_y@z\ttwo lines and more" {
		t.Errorf("got %q", got)
	}
}
