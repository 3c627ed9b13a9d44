package twin

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A line that no pattern matches stays open, and a pattern that matches no line is reported, unless
// a case that did not run may need it.
func TestExplain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list.txt")
	text := "# comment\n\nA1: one\n  x/* : ^- gone$\n  y/b : ^\\+ new\nB2: two\n  * : always\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := LoadDifferences(file)
	if err != nil {
		t.Fatal(err)
	}
	ids, open := list.Explain("x/a", []string{"- gone", "+ new", "- gone too"})
	if !slices.Equal(ids, []string{"A1"}) || !slices.Equal(open, []string{"+ new", "- gone too"}) {
		t.Errorf("got %q and %q", ids, open)
	}
	if got := strings.Join(list.Unused(), "; "); got != "A1: y/b : ^\\+ new; B2: * : always" {
		t.Errorf("unused: %s", got)
	}
	list.NotRun("y/b")
	if got := list.Unused(); got != nil {
		t.Errorf("unused after a skip: %q", got)
	}
	for _, bad := range []string{"  * : x\n", "A1 no reason\n", "A1: one\n  * no pattern\n", "A1: one\n  * : (\n", "A1: one\n  * : ^[-+] \n"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadDifferences(file); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// Everything about a link that one side lacks is one line; a line that occurs twice differs from
// one that occurs once.
func TestCompare(t *testing.T) {
	a := []string{"ADD host link a mtu=1", "ADD host link a up", "ADD host sysctl net/ipv4/conf/a/x=1", "ADD host link b mtu=1", "ADD host rule 1"}
	b := []string{"ADD host link b mtu=2", "ADD host rule 1", "ADD host rule 1"}
	want := []string{"- ADD host link a", "- ADD host link b mtu=1", "+ ADD host link b mtu=2", "+ ADD host rule 1 (2)"}
	if got := compare("", a, b); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := added("m: ", b, append(b, "CHECK ctr1 plugin x succeeds", "left")); !slices.Equal(got, []string{"m: + left"}) {
		t.Errorf("more: got %q", got)
	}
}

// Generated names and addresses are distinguished from those in the configuration.
func TestNamerPlain(t *testing.T) {
	n := namer{asked: "02:aa:00:00:00:01", paths: []string{"/proc/1/fd/5", "$NETNS1"}}
	got := n.plain("veth01234567 vethfedcba98 veth01234567 bwp0123456789ab 02:AA:00:00:00:01 02:aa:00:00:00:02 /proc/1/fd/5 vethernet")
	if want := "veth#1 veth#2 veth#1 bwp#3 02:AA:00:00:00:01 MAC $NETNS1 vethernet"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := n.link("veth#2"); got != "vethfedcba98" {
		t.Errorf("link: got %s", got)
	}
}

// A mistake in the corpus is an error, so that no case is skipped.
func TestLoadErrors(t *testing.T) {
	tests := map[string]string{
		"good":           "intro\n\n-- a --\nneeds x y\ncontainers 2\nargs A=B\n# why\n{\"cniVersion\":\"1.0.0\",\"name\":\"n\",\"plugins\":[{\"type\":\"p\",\"ipam\":{\"type\":\"q\"}}]}\n",
		"twice":          "-- a --\n{}\n-- a --\n{}\n",
		"unknown word":   "-- a --\nneed x\n{}\n",
		"no config":      "-- a --\nneeds x\n",
		"bad config":     "-- a --\n{\n",
		"no end of line": "-- a\n{}\n",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "f.txt"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cases, err := Load(dir)
			if (err == nil) != (name == "good") {
				t.Fatalf("got %v", err)
			}
			if err == nil && (len(cases) != 1 || cases[0].Name != "f/a" || cases[0].Containers != 2 || !slices.Equal(cases[0].Types(), []string{"p", "q"})) {
				t.Errorf("got %+v", cases)
			}
		})
	}
}

// What is recorded of a run is what its verbs have changed, is read as it was written, and is what the
// run had, on the same host and on one that had more before.
func TestRecording(t *testing.T) {
	before := []string{"host link lo flags=UP", "host sysctl net/ipv4/ip_forward=0", "ctr1 link lo flags=UP"}
	lines := []string{
		"ADD ctr1 result ips[0].gateway ", "ADD host link lo flags=UP", "ADD host sysctl net/ipv4/ip_forward=1", "ADD host rule 1", "ADD host rule 1",
		"ADD ctr1 link lo flags=UP", "ADD file $DIR/x \"- y\"", "CHECK ctr1 plugin \"x\" succeeds",
		"DEL ctr1 plugin \"x\" fails", "DEL host link lo flags=UP", "DEL ctr1 link lo flags=UP", "DEL host sysctl net/ipv4/ip_forward=0",
	}
	run := func(more ...string) (all []string) {
		for _, l := range slices.Concat(before, more) {
			all = append(all, "BEFORE "+l)
		}
		return slices.Concat(all, lines, []string{"DEL nft table x"})
	}
	got := changes(run())
	want := []string{
		"ADD ctr1 result ips[0].gateway ", "ADD file $DIR/x \"- y\"", "ADD host rule 1", "ADD host rule 1", "- ADD host sysctl net/ipv4/ip_forward=0",
		"ADD host sysctl net/ipv4/ip_forward=1", "CHECK ctr1 plugin \"x\" succeeds", "DEL ctr1 plugin \"x\" fails",
	}
	if !slices.Equal(got, want) {
		t.Errorf("changes: got %q, want %q", got, want)
	}
	dir := t.TempDir()
	cases := []Case{{Name: "f/a, b", text: "x"}, {Name: "f/c", text: "y"}, {Name: "g/d", text: "z"}}
	r := &Recording{Version: "v1", Answers: map[string]Answer{
		"f/a, b": {Plan: cases[0].Hash(), Linux: "6.1", Lines: got}, "f/c": {Plan: "0123456789ab", Linux: "6.18", Lacks: "CONFIG_X"},
	}}
	if err := r.Write(dir, cases); err != nil {
		t.Fatal(err)
	}
	again, err := ReadRecording(dir)
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("got %+v, %v; want %+v", again, err, r)
	}
	if diff := differ(again.Answers["f/a, b"], run()); len(diff) > 0 {
		t.Errorf("differs from itself: %q", diff)
	}
	lines = append(lines, "ADD host link d0 up", "DEL host link d0 up")
	if diff := differ(again.Answers["f/a, b"], run("host link d0 up")); len(diff) > 0 {
		t.Errorf("differs on another host: %q", diff)
	}
	lines = append(lines, "DEL host rule 1")
	if diff := differ(again.Answers["f/a, b"], run("host link d0 up")); !slices.Equal(diff, []string{"+ DEL host rule 1"}) {
		t.Errorf("a rule is left: got %q", diff)
	}
	for i, want := range []string{"", "the case has changed", "is not recorded"} {
		if got := again.Stale(&cases[i]); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", cases[i].Name, got, want)
		}
	}
}

// A recording that cannot be read is an error, and none is empty.
func TestReadRecordingErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"reference v1\n\n-- a --\nplan 1\n": `is no plan`,
		"version 1\n":                       `"version 1"`,
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, recorded), 0o700); err != nil {
			t.Fatal(err)
		}
		if text != "" {
			if err := os.WriteFile(filepath.Join(dir, recorded, "f.txt"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ReadRecording(dir); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
