package applet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/spec"
)

// A call is a run of the serve loop. CNI_NETNS is /dev/null unless env sets it; the applet ignores
// it.
type call struct {
	applet applet.Applet
	verb   string
	stdin  io.Reader
	env    map[string]string
	stdout io.Writer // nil: returned by serve
	ctx    context.Context
}

// serve returns the exit code, stdout and stderr.
func serve(c call) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	env := map[string]string{"CNI_COMMAND": c.verb, "CNI_CONTAINERID": "ctr1", "CNI_NETNS": "/dev/null", "CNI_IFNAME": "eth0"}
	maps.Copy(env, c.env)
	if c.stdin == nil {
		c.stdin = strings.NewReader(`{"cniVersion":"1.1.0","name":"demo","type":"fake"}`)
	}
	if c.stdout == nil {
		c.stdout = &out
	}
	if c.ctx == nil {
		c.ctx = context.Background()
	}
	a := withAnyNetNS(c.applet, true)
	a.Name = "fake"
	code = applet.Serve(c.ctx, &a, applet.Process{
		Getenv: func(k string) string { return env[k] }, Stdin: c.stdin, Stdout: c.stdout, Stderr: &err,
	})
	return code, out.String(), err.String()
}

// withAnyNetNS returns a plugin with the fact AnyNetNS.
func withAnyNetNS(a applet.Applet, any bool) applet.Applet {
	plugin := a.Plugin
	a.Plugin = func() (v spec.Plugin) {
		if plugin != nil {
			v = plugin()
		}
		v.AnyNetNS = any
		return v
	}
	return a
}

// addApplet returns a plugin with fn as ADD.
func addApplet(fn func(*spec.Request) (*spec.Result, error)) applet.Applet {
	return applet.Applet{Plugin: func() spec.Plugin {
		return spec.Plugin{Add: func(_ context.Context, r *spec.Request) (*spec.Result, error) { return fn(r) }}
	}}
}

func TestServeErrors(t *testing.T) {
	tests := map[string]struct {
		err     error
		code    int
		msg     string
		details string
	}{
		"typed":   {spec.Errorf(spec.CodeExhausted, "range is full"), 101, "range is full", ""},
		"untyped": {io.ErrUnexpectedEOF, 999, "unexpected EOF", ""},
		"details": {&spec.Error{Code: 11, Msg: "busy", Details: "held by x"}, 11, "busy", "held by x"},
		"wrapped": {errors.Join(errors.New("first"), spec.Errorf(7, "second")), 7, "first\nsecond", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, stderr := serve(call{verb: "ADD", applet: addApplet(func(*spec.Request) (*spec.Result, error) { return nil, tt.err })})
			var got struct {
				CNIVersion, Msg, Details string
				Code                     int
			}
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if got.Code != tt.code || got.Msg != tt.msg || got.Details != tt.details || got.CNIVersion != "1.1.0" {
				t.Errorf("got %+v", got)
			}
			if code != 1 || stderr != "" {
				t.Errorf("got exit code %d, stderr %q", code, stderr)
			}
		})
	}
}

// An error in reading the request has the cniVersion of the configuration.
func TestServeErrorVersion(t *testing.T) {
	for _, rest := range []string{`"name":"n","prevResult":{"ips":[{"address":"x"}]}`, `"name":"/"`} {
		_, out, _ := serve(call{verb: "ADD", stdin: strings.NewReader(`{"cniVersion":"1.0.0",` + rest + `}`),
			applet: addApplet(func(*spec.Request) (*spec.Result, error) { return nil, nil })})
		if !strings.Contains(out, `"cniVersion": "1.0.0"`) || !strings.Contains(out, `"code"`) {
			t.Errorf("%s: got %s", rest, out)
		}
	}
}

func TestServePanic(t *testing.T) {
	code, out, stderr := serve(call{verb: "ADD", applet: addApplet(func(*spec.Request) (*spec.Result, error) { panic("surprise") })})
	if code != 1 || !json.Valid([]byte(out)) || !strings.Contains(out, `"code": 999`) || !strings.Contains(out, "surprise") {
		t.Errorf("got exit code %d, stdout %s", code, out)
	}
	if !strings.Contains(stderr, "serve_test.go") {
		t.Errorf("no stack on stderr: %s", stderr)
	}
}

// full is a standard output on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestServeWriteFails(t *testing.T) {
	ok := addApplet(func(*spec.Request) (*spec.Result, error) { return &spec.Result{}, nil })
	for _, verb := range []string{"ADD", "VERSION"} {
		code, _, stderr := serve(call{verb: verb, applet: ok, stdout: full{}})
		if code != 1 || !strings.Contains(stderr, `"code": 5`) || !strings.Contains(stderr, "no space left") {
			t.Errorf("%s: got exit code %d, stderr %s", verb, code, stderr)
		}
	}
}

// Verbs without a result print nothing to stdout, and warnings go to stderr.
func TestServeStreams(t *testing.T) {
	quiet := func(context.Context, *spec.Request) error { return nil }
	a := applet.Applet{Plugin: func() spec.Plugin {
		return spec.Plugin{Del: quiet, Status: quiet}
	}}
	for _, verb := range []string{"DEL", "STATUS"} {
		if code, out, stderr := serve(call{verb: verb, applet: a}); code != 0 || out != "" || stderr != "" {
			t.Errorf("%s: got %d, %q, %q", verb, code, out, stderr)
		}
	}
	warns := addApplet(func(r *spec.Request) (*spec.Result, error) {
		r.Warn("backend %q means nftables", "iptables")
		return &spec.Result{}, nil
	})
	code, out, stderr := serve(call{verb: "ADD", applet: warns, env: map[string]string{"CNI_ARGS": "IgnoreUnknown=1;FOO=BAR"}})
	if code != 0 || stderr != "cnibox fake: backend \"iptables\" means nftables\n" || !strings.HasSuffix(out, "}") {
		t.Errorf("got %d, %q, %q", code, out, stderr)
	}
}

// A plugin with AnyNetNS accepts a path that is not a network namespace; others do not.
func TestServeRequiresNetNS(t *testing.T) {
	ran := false
	a := addApplet(func(*spec.Request) (*spec.Result, error) { ran = true; return &spec.Result{}, nil })
	env := map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "ctr1", "CNI_NETNS": "/dev/null", "CNI_IFNAME": "eth0"}
	for _, any := range []bool{true, false} {
		var out bytes.Buffer
		ran = false
		a := withAnyNetNS(a, any)
		code := applet.Serve(context.Background(), &a, applet.Process{Getenv: func(k string) string { return env[k] },
			Stdin: strings.NewReader(`{"cniVersion":"1.0.0","name":"n"}`), Stdout: &out, Stderr: io.Discard})
		if ran != any || (code == 0) != any {
			t.Errorf("AnyNetNS %t: ran %t, exit code %d, %s", any, ran, code, out.String())
		}
	}
}

func TestServeHugeInput(t *testing.T) {
	huge := io.MultiReader(strings.NewReader(`{"name":"n","x":"`), io.LimitReader(zeros{}, 1<<30))
	code, out, _ := serve(call{verb: "ADD", applet: addApplet(nil), stdin: huge})
	if code != 1 || !strings.Contains(out, `"code": 6`) {
		t.Errorf("got exit code %d, %s", code, out)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '0'
	}
	return len(b), nil
}

// pipe returns a standard input with text that stays open until the test ends.
func pipe(t *testing.T, first string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	if _, err := w.WriteString(first); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestServeVersionNeverHangs(t *testing.T) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	closed := pipe(t, "")
	closed.Close()
	tests := map[string]struct {
		stdin io.Reader
		want  string
	}{
		"silent":             {pipe(t, ""), "1.1.0"},
		"no end of file":     {pipe(t, `{"cniVersion":"0.4.0"}`), "0.4.0"},
		"half a document":    {pipe(t, `{"cniVersion":"0.4.`), "1.1.0"},
		"endless device":     {zero, "1.1.0"},
		"null":               {null, "1.1.0"},
		"closed":             {closed, "1.1.0"},
		"unsupported":        {strings.NewReader(`{"cniVersion":"2.0.0"}`), "1.1.0"},
		"empty":              {strings.NewReader(""), "1.1.0"},
		"supported, earlier": {strings.NewReader(`{"cniVersion":"0.2.0"}`), "0.2.0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, stderr := serve(call{verb: "VERSION", stdin: tt.stdin})
			if code != 0 || stderr != "" || !strings.HasPrefix(out, `{"cniVersion":"`+tt.want+`"`) || !strings.HasSuffix(out, "}\n") {
				t.Errorf("got %d, %q, %q", code, out, stderr)
			}
		})
	}
}

// A signal interrupts reading of the configuration.
func TestServeInterruptedInput(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	code, out, _ := serve(call{verb: "ADD", applet: addApplet(nil), stdin: pipe(t, ""), ctx: ctx})
	if code != 1 || !strings.Contains(out, `"code": 5`) || !strings.Contains(out, "error reading from stdin") {
		t.Errorf("got %d, %s", code, out)
	}
}
