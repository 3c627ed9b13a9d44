package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/test/product"
)

// completions are what was typed, and the line after Tab.
var completions = []struct{ typed, want string }{
	{"cni-exec stat", "cni-exec status "},
	{"cni-exec add my", "cni-exec add mynet "},
	{"cni-exec add mynet --cre", "cni-exec add mynet --create "},
	{"cni-exec run -p 80:80 --net my", "cni-exec run -p 80:80 --net mynet "},
	{"cni-exec run --net=my", "cni-exec run --net=mynet "},
	{"cni-exec del mynet --container-id bl", "cni-exec del mynet --container-id blue1 "},
	{"cni-exec gc mynet --keep bl", "cni-exec gc mynet --keep blue1/eth0 "},
	{"cni-exec show 2001:db8:", "cni-exec show 2001:db8::5 "},
	{"cni-exec ls -o wi", "cni-exec ls -o wide "},
	{"cni-exec lint net.", "cni-exec lint net.d/"},
	{"cni-exec --conf-dir net.", "cni-exec --conf-dir net.d/"},
	{"cni-exec --conf-dir=net.", "cni-exec --conf-dir=net.d/"},
	{"cni-exec run -- ls --color net.", "cni-exec run -- ls --color net.d/"},
}

// newShell returns a function that runs a script of a shell, in a directory with a network and an
// attachment, with the applets and the completions.
func newShell(t *testing.T, name string, args ...string) func(script string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	product.Install(t, bin)
	scripts, err := filepath.Abs("../../dist/completion")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"net.d/mynet.conflist":        `{"cniVersion":"1.1.0","name":"mynet","plugins":[{"type":"loopback"}]}`,
		"results/mynet-blue1-eth0":    `{"kind":"cniCacheV1","containerId":"blue1","config":"eyJjbmlWZXJzaW9uIjoiMS4xLjAifQ==","ifName":"eth0","networkName":"mynet","result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"2001:db8::5/64","interface":0}]}}`,
		"results/other-black2-eth0":   `{"kind":"cniCacheV1","containerId":"black2","config":"e30=","ifName":"eth0","networkName":"other"}`,
		"results/broken-black3-eth0 ": `{`,
	} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return func(script string, more ...string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(path, append(append(args, file), more...)...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "TERM=dumb", "LC_ALL=C.UTF-8", "NETCONFPATH=net.d", "CNIBOX_STATE=" + dir, "SCRIPTS=" + scripts}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
}

// compareCompletions checks that the output has the line of each completion.
func compareCompletions(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != len(completions) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(completions), out)
	}
	for i, c := range completions {
		if lines[i] != c.want {
			t.Errorf("%q becomes %q, want %q", c.typed, lines[i], c.want)
		}
	}
}

// typed returns the typed parts of completions, as arguments.
func typed() (list []string) {
	for _, c := range completions {
		list = append(list, c.typed)
	}
	return list
}

// completionKeys ends the line that is edited in a terminal of zsh: Ctrl-T writes it to the file
// out.
const completionKeys = `
zmodload zsh/zpty
shell=$1 setup=$2
shift 2
zpty z $shell
zpty -w z $setup
for line in "$@"; do
	zpty -w -n z "$line"$'\t\x14'
done
zpty -w z exit
while zpty -r z line; do :; done
print -r -- "$(<out)"
`

// TestCompletionZsh presses Tab in zsh.
func TestCompletionZsh(t *testing.T) {
	t.Parallel()
	shell := newShell(t, "zsh", "-f")
	const setup = `fpath=($SCRIPTS $fpath); autoload -U compinit; compinit -u -D;` +
		` dump() { print -r -- "$BUFFER" >>out; BUFFER=; }; zle -N dump; bindkey '^T' dump`
	compareCompletions(t, shell(completionKeys, append([]string{"zsh -f -i", setup}, typed()...)...))
}

// TestCompletionBash presses Tab in bash, in a terminal of zsh.
func TestCompletionBash(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	shell := newShell(t, "zsh", "-f")
	const setup = `source $SCRIPTS/cni-exec.bash; dump() { printf '%s\n' "$READLINE_LINE" >>out; READLINE_LINE=; READLINE_POINT=0; };` +
		` bind -x '"\C-t": dump'`
	compareCompletions(t, shell(completionKeys, append([]string{"bash --norc --noprofile -i", setup}, typed()...)...))
}

// fish lists completions without a terminal.
func TestCompletionFish(t *testing.T) {
	t.Parallel()
	shell := newShell(t, "fish", "--no-config")
	out := shell(`
source $SCRIPTS/cni-exec.fish
for line in $argv
    echo (string replace -r '\S*$' '' -- $line)(complete -C $line | string replace -r '\t.*' '')
end`, typed()...)
	var want strings.Builder
	for _, c := range completions {
		want.WriteString(strings.TrimSuffix(c.want, " ") + "\n")
	}
	if out != want.String() {
		t.Errorf("got:\n%swant:\n%s", out, want.String())
	}
}
