package twin_test

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/test/dhcptest"
	"github.com/cnibox/cnibox/test/product"
	"github.com/cnibox/cnibox/test/twin"
)

func TestMain(m *testing.M) { product.Main(m, nil) }

// reference is the directory of the reference plugins, which `make test-twin LIVE=1` and RECORD=1
// build; empty: compare with what is recorded.
var reference = os.Getenv("CNIBOX_TWIN_NEWEST")

// guestLog is a log of TestKernelTwinRecord in a guest, whose answers are to be recorded here.
var guestLog = os.Getenv("CNIBOX_TWIN_GUEST")

// howToRecord ends the message about an answer that is missing or stale.
const howToRecord = "`make test-twin RECORD=1` records it, and `make test-twin RECORD=1 KERNEL=6.1` what this kernel lacks"

// TestKernelTwin compares ours with the recorded answers of the reference on each configuration of
// the corpus: all differences must be in the list, and all of the list must occur. In a guest of
// make test-vm only those cases run that some kernels cannot run.
func TestKernelTwin(t *testing.T) {
	lab := newLab(t)
	cases := corpus(t)
	recording := readRecording(t)
	if recording.Version != applet.Release {
		t.Errorf("recorded is reference %s, and cnibox is like %s: %s", recording.Version, applet.Release, howToRecord)
	}
	each(t, lab, cases, differences(t, "differences.txt"), func(t *testing.T, lab twin.Lab, c *twin.Case) (diff, said []string, err error) {
		if why := recording.Stale(c); why != "" {
			t.Fatalf("%s: %s", why, howToRecord)
		}
		answer := recording.Answers[c.Name]
		needs(t, c)
		if answer.Lacks != "" {
			t.Skipf("SKIPPED: the reference's answer is not recorded, since %s was missing: make test-twin LIVE=1 compares", answer.Lacks)
		}
		diff, said, err = lab.Compare(c, answer)
		if len(diff) > 0 && answer.Linux != twin.Linux() {
			said = append(said, fmt.Sprintf("The reference's answer is from Linux %s, and this is %s; make test-twin LIVE=1 compares on this one.", answer.Linux, twin.Linux()))
		}
		return diff, said, err
	})
}

// TestKernelTwinLive runs the reference plugins beside ours, also in the place of each other. The
// reference must do what is recorded.
func TestKernelTwinLive(t *testing.T) {
	needReference(t)
	lab := newLab(t)
	recording := readRecording(t)
	if v := version(t); v != recording.Version {
		t.Errorf("recorded is reference %s, and this is %s: %s", recording.Version, v, howToRecord)
	}
	list := append(differences(t, "differences.txt"), differences(t, "replacement.txt")...)
	each(t, lab, corpus(t), list, func(t *testing.T, lab twin.Lab, c *twin.Case) (diff, said []string, err error) {
		needs(t, c)
		answer, diff, said, err := lab.Live(c)
		if err != nil {
			return nil, nil, err
		}
		was := recording.Answers[c.Name]
		if why := recording.Stale(c); why != "" {
			t.Errorf("%s: %s", why, howToRecord)
		} else if changed := twin.Changed(was, answer); was.Lacks == "" && len(changed) > 0 {
			t.Errorf("recorded on Linux %s is not what the reference does here: %s\n%s", was.Linux, howToRecord, strings.Join(changed, "\n"))
		}
		return diff, said, nil
	})
}

// TestKernelTwinRecord records what the reference does. A case that this kernel cannot run keeps its
// answer of another kernel, as long as it has not changed. A guest prints what is missing, and is then
// run again here to take that from its log.
func TestKernelTwinRecord(t *testing.T) {
	cases := corpus(t)
	recording := readRecording(t)
	missing := func(c *twin.Case) bool { return recording.Stale(c) != "" || recording.Answers[c.Name].Lacks != "" }
	if guestLog != "" {
		answers := fromGuest(t)
		for _, c := range cases {
			if a, ok := answers[c.Name]; ok && missing(&c) {
				recording.Answers[c.Name] = a
			}
		}
		write(t, recording, cases)
		return
	}
	needReference(t)
	lab := newLab(t)
	if v := version(t); v != recording.Version {
		recording = &twin.Recording{Version: v, Answers: map[string]twin.Answer{}}
	}
	var mu sync.Mutex
	t.Run("cases", func(t *testing.T) { // which ends after all of them
		for _, c := range cases {
			if skipped(&c) || kerneltest.Guest() && !missing(&c) {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				answer := twin.Answer{Plan: c.Hash(), Linux: twin.Linux(), Lacks: lacks(t, &c)}
				if answer.Lacks == "" {
					var err error
					if answer, err = serving(t, lab).Ask(&c); err != nil {
						t.Fatal(err)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if answer.Lacks == "" || missing(&c) {
					recording.Answers[c.Name] = answer
				}
				if kerneltest.Guest() && answer.Lacks == "" {
					b, _ := json.Marshal(map[string]twin.Answer{c.Name: answer})
					fmt.Printf("%s%s\n", guestMark, b)
				}
			})
		}
	})
	if !t.Failed() && !kerneltest.Guest() {
		write(t, recording, cases)
	}
}

// write writes the recording. TestKernelTwin reports cases that have no answer.
func write(t *testing.T, r *twin.Recording, cases []twin.Case) {
	t.Helper()
	if err := r.Write("testdata", cases); err != nil {
		t.Fatal(err)
	}
}

// guestMark begins a line with an answer in the log of a guest.
const guestMark = "recorded: "

// fromGuest returns the answers in the log of a guest.
func fromGuest(t *testing.T) map[string]twin.Answer {
	t.Helper()
	b, err := os.ReadFile(guestLog)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]twin.Answer{}
	for l := range strings.Lines(string(b)) {
		if _, text, ok := strings.Cut(l, guestMark); ok {
			if err := json.Unmarshal([]byte(text), &answers); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(answers) == 0 {
		t.Fatalf("%s has no answers", guestLog)
	}
	return answers
}

// each runs a comparison of all cases, and checks what differs and that each difference still
// occurs, except those that a case may have that did not run.
func each(t *testing.T, lab twin.Lab, cases []twin.Case, list twin.Differences, compare func(*testing.T, twin.Lab, *twin.Case) (diff, said []string, err error)) {
	t.Helper()
	var mu sync.Mutex
	ran := map[string]bool{}
	for _, c := range cases {
		if skipped(&c) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			diff, said, err := compare(t, serving(t, lab), &c)
			if err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ran[c.Name] = true
			ids, open := list.Explain(c.Name, diff)
			if len(open) > 0 {
				t.Errorf("not in the list of differences (- reference, + ours):\n%s\nwhat the plugins said:\n%s",
					strings.Join(open, "\n"), strings.Join(said, "\n"))
			}
			t.Logf("differs by %q", ids)
		})
	}
	t.Cleanup(func() { // after all cases that -run selects
		for _, c := range cases {
			if !ran[c.Name] {
				list.NotRun(c.Name)
			}
		}
		for _, u := range list.Unused() {
			t.Errorf("no case needs this difference any more: %s", u)
		}
	})
}

// serving returns the lab with servers that end with the test.
func serving(t *testing.T, lab twin.Lab) twin.Lab {
	t.Helper()
	lab.Serve = func(host *netns.NS) { dhcptest.Start4(t, host) }
	return lab
}

// skipped reports whether a case is left out in a guest, since every kernel can run it.
func skipped(c *twin.Case) bool { return kerneltest.Guest() && len(c.Needs) == 0 }

// corpus loads the cases.
func corpus(t *testing.T) []twin.Case {
	t.Helper()
	cases, err := twin.Load("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// differences loads a list of the corpus.
func differences(t *testing.T, name string) twin.Differences {
	t.Helper()
	list, err := twin.LoadDifferences(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func readRecording(t *testing.T) *twin.Recording {
	t.Helper()
	r, err := twin.ReadRecording("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func needReference(t *testing.T) {
	t.Helper()
	if reference == "" {
		t.Skip("SKIPPED: the reference plugins themselves: make test-twin LIVE=1 builds and runs them")
	}
}

// version returns the version of the reference plugins.
func version(t *testing.T) string {
	t.Helper()
	info, err := buildinfo.ReadFile(filepath.Join(reference, "bridge"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Main.Version
}

// newLab makes a directory with a link for each applet.
func newLab(t *testing.T) twin.Lab {
	t.Helper()
	kerneltest.NS(t) // skips without the privilege
	for _, tool := range []string{"ip", "tc", "bridge"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	lab := twin.Lab{Reference: reference, Ours: t.TempDir(), Dir: t.TempDir()}
	product.Install(t, lab.Ours)
	return lab
}

// needs skips a case that cannot run here.
func needs(t *testing.T, c *twin.Case) {
	t.Helper()
	for _, n := range c.Needs {
		option, try := twin.Probe(n)
		kerneltest.Need(t, option, try)
	}
}

// lacks returns the first feature that a case needs and this kernel lacks, or "".
func lacks(t *testing.T, c *twin.Case) string {
	t.Helper()
	for _, n := range c.Needs {
		option, try := twin.Probe(n)
		if err := try(); errors.Is(err, unix.EOPNOTSUPP) {
			return option
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return ""
}
