package applets_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"cnibox/applets"
	"cnibox/applets/applet"
)

// serveIPAM calls an address plugin, which looks into no namespace; code is 0 or
// that of the error object.
func serveIPAM(t *testing.T, plugin, verb, id, conf, args string) (code int, out string) {
	t.Helper()
	a, ok := applets.Lookup(plugin)
	if !ok {
		t.Fatalf("there is no %s", plugin)
	}
	env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": id, "CNI_IFNAME": "eth0", "CNI_NETNS": "/dev/null", "CNI_ARGS": args}
	var stdout, stderr bytes.Buffer
	exit := applet.Serve(t.Context(), a, applet.Process{
		Applets: applets.All(),
		Getenv:  func(k string) string { return env[k] }, Stdin: strings.NewReader(conf), Stdout: &stdout, Stderr: &stderr,
	})
	if exit == 0 {
		return 0, stdout.String() + stderr.String()
	}
	var e struct {
		Code         int
		Msg, Details string
	}
	if err := json.Unmarshal(stdout.Bytes(), &e); err != nil {
		t.Fatalf("%v: %s", err, stdout.String())
	}
	return e.Code, e.Msg + "; " + e.Details
}

// wantIPAM asks for a code and a part of what is printed, blanks aside.
func wantIPAM(t *testing.T, plugin, verb, id, conf, args string, code int, text string) {
	t.Helper()
	got, out := serveIPAM(t, plugin, verb, id, conf, args)
	if got != code || !strings.Contains(strings.Join(strings.Fields(out), ""), strings.Join(strings.Fields(text), "")) {
		t.Errorf("%s %s: got %d %s, want %d %s", verb, id, got, out, code, text)
	}
}
