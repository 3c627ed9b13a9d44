package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/test/product"
)

func times(ms ...int) (s series) {
	for _, n := range ms {
		s.took = append(s.took, cost{wall: time.Duration(n) * time.Millisecond})
	}
	return s
}

func TestQuantile(t *testing.T) {
	tests := map[string]struct {
		s    series
		want figure
	}{
		"none": {series{}, figure{}},
		"one":  {times(7), figure{Median: 7, P90: 7, Min: 7, Lower: 7, Upper: 7, Max: 7}},
		"ten":  {times(10, 9, 8, 7, 6, 5, 4, 3, 2, 1), figure{Median: 6, P90: 10, Min: 1, Lower: 3, Upper: 8, Max: 10}},
		"processor": {
			series{took: []cost{{wall: time.Second, cpu: time.Second, kernel: 0}, {wall: time.Second, cpu: 2 * time.Second, kernel: time.Second}}, bare: time.Millisecond},
			figure{Median: 1000, P90: 1000, Min: 1000, Lower: 1000, Upper: 1000, Max: 1000, CPU: 1500, Kernel: 500, Bare: 1},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.s.milliseconds(); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	failed := series{err: errors.New("no")}
	base := figure{Median: 10}
	tests := map[string]struct {
		l    line
		want string
	}{
		"fast enough":       {better("", times(2), times(16), 8), "ok"},
		"too slow":          {better("", times(2), times(15), 8), "MISSED"},
		"ours failed":       {better("", failed, times(15), 8), "FAILED"},
		"reference failed":  {better("", times(2), failed, 8), "not measured"},
		"no reference":      {better("", times(2), series{}, 8), "not measured"},
		"close enough":      {within("", times(14), base, 1.4), "ok"},
		"too far":           {within("", times(15), base, 1.4), "MISSED"},
		"nothing to reach":  {within("", times(15), base, 0), ""},
		"floor not there":   {within("", times(15), figure{}, 1.4), "not measured"},
		"crowd with losses": {compare("", throughput{9, []error{failed.err}}, throughput{each: 1}, 2), "FAILED"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.l.verdict(); got != tt.want {
				t.Errorf("got %q, want %q (%+v)", got, tt.want, tt.l)
			}
		})
	}
}

// Subjects take turns in both directions, the first round is not counted, and a subject that fails
// does not stop the others.
func TestInterleave(t *testing.T) {
	var order []string
	work := func(name string, failAt int) subject {
		n := 0
		return subject{name: name, steps: []string{"x"}, round: func() ([]cost, error) {
			order = append(order, name)
			n++
			if n == failAt {
				return nil, errors.New("broken")
			}
			return []cost{{wall: time.Duration(n)}}, nil
		}}
	}
	r := interleave(3, work("a", 0), work("b", 3))
	if want := "b a a b b a a"; strings.Join(order, " ") != want {
		t.Errorf("order: got %s, want %s", order, want)
	}
	if got, want := r.of("x", "a").took, []cost{{wall: 2}, {wall: 3}, {wall: 4}}; !slices.Equal(got, want) {
		t.Errorf("a took %v, want %v", got, want)
	}
	if r.of("x", "a").err != nil || r.of("x", "b").err == nil {
		t.Errorf("errors: a %v, b %v; want one of b", r.of("x", "a").err, r.of("x", "b").err)
	}
}

// The table must fit a terminal of 80 columns.
func TestTableWidth(t *testing.T) {
	var b bytes.Buffer
	var r report
	r.writeGroup(&b, group{title: "Title"}, []line{
		better("CHECK, exec'd per applet", times(123, 456), times(1234, 4567), 15),
		within("DEL, exec, to the 1st", times(123, 456), times(1, 2).milliseconds(), 1.3),
	})
	for l := range strings.Lines(b.String()) {
		if n := len(strings.TrimRight(l, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, l)
		}
	}
}

// Every plugin but dhcp, which has its own group, is measured with many attachments.
func TestEachPluginIsFilled(t *testing.T) {
	names := []string{"dhcp"}
	for _, f := range fillers(t.TempDir()) {
		names = append(names, f.plugin)
	}
	for _, name := range product.Names() {
		if !slices.Contains(append(names, tools...), name) {
			t.Errorf("fill has no %s", name)
		}
	}
}

// Tables of documents are rewritten from a report; a table whose rows were not measured stays as it
// is.
func TestFillBlocks(t *testing.T) {
	whole := report{Reference: "v9", Machine: machine{Kernel: "6.6", CPUs: 2, Go: "go1", Arch: "amd64"}}
	for _, row := range slices.Concat(usersRows, ratioRows) {
		l := better(row.what, times(2), times(16), 10)
		l.Group = row.group
		whole.Lines = append(whole.Lines, l)
	}
	const old = "before\n<!-- bench: users -->\nold\n<!-- bench end -->\nbetween\n<!-- bench: base -->\nold base\n<!-- bench end -->\nafter\n"
	got, err := whole.fillBlocks(old)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n<!-- bench: users -->\nAgainst containernetworking/plugins v9: kernel 6.6", "| chain ADD by `cni-exec` | 2.00 ms | 2.00 to 2.00 |  | 16.0 ms | 8.00× faster | **10×** |\n",
		"|\n<!-- bench end -->\nbetween\n<!-- bench: base -->\nold base\n<!-- bench end -->\nafter\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if n := strings.Count(got, "\n| "); n != 1+len(usersRows) {
		t.Errorf("%d rows", n)
	}
	if again, err := whole.fillBlocks(got); err != nil || again != got {
		t.Errorf("a second time: %v\n%s", err, again)
	}
	if got, err = whole.fillBlocks("<!-- bench: ratios -->\n<!-- bench end -->"); err != nil || !strings.Contains(got, "\n| its CHECK | 8.00× faster |\n") {
		t.Errorf("ratios: %v\n%s", err, got)
	}
	part := report{Lines: whole.Lines[:1]}
	if _, err := part.fillBlocks(old); err == nil {
		t.Error("a report without all rows was taken")
	}
	for _, text := range []string{"<!-- bench: users -->\n", "<!-- bench: x -->\n<!-- bench end -->"} {
		if _, err := whole.fillBlocks(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	file := filepath.Join(t.TempDir(), "report")
	quick := report{Quick: true, Lines: whole.Lines}
	if err := quick.save(file); err != nil {
		t.Fatal(err)
	}
	if err := writeTables(file, file); err == nil {
		t.Error("the figures of a quick run were taken")
	}
}

// A message without a type and a truncated one get no reply; others get one address per MAC
// address.
func TestDHCPReply(t *testing.T) {
	message := func(card byte, options ...byte) []byte {
		m := make([]byte, atOptions, atOptions+len(options))
		m[atHardware] = card
		return append(m, options...)
	}
	leased := map[[6]byte]uint16{}
	tests := []struct {
		message []byte
		kind    byte   // of the reply; 0: none
		address string // bytes
	}{
		{message(1, optKind, 1, 1, optEnd), 2, "\x0a\xf3\x00\x0a"},
		{message(2, 0, 50, 4, 0, 0, 0, 0, optKind, 1, 3, optEnd), 5, "\x0a\xf3\x00\x0b"},
		{message(1, optKind, 1, 3, optEnd), 5, "\x0a\xf3\x00\x0a"},
		{message(1, optKind, 1, 7, optEnd), 0, ""},
		{message(1, 50, 4, 0), 0, ""},
		{message(1)[:100], 0, ""},
	}
	for i, tt := range tests {
		r := reply(tt.message, leased)
		if tt.kind == 0 {
			if r != nil {
				t.Errorf("%d: got an answer", i)
			}
			continue
		}
		if got := option(r[atOptions:], optKind); got != tt.kind || string(r[atYourAddress:atYourAddress+4]) != tt.address {
			t.Errorf("%d: got kind %d, address %v; want %d, %v", i, got, r[atYourAddress:atYourAddress+4], tt.kind, []byte(tt.address))
		}
	}
}
