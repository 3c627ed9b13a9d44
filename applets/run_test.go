package applets_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applet"
)

// The name of no applet is an error; a runtime gets it as an error object.
func TestRunUnknownName(t *testing.T) {
	for command, want := range map[string]string{"": "", "ADD": `"code": 4`} {
		var out, stderr bytes.Buffer
		code := applets.Run(t.Context(), "/opt/cni/bin/briidge", applet.Process{
			Applets: applets.All(),
			Getenv:  func(string) string { return command }, Stdout: &out, Stderr: &stderr,
		})
		if code != 2 || !strings.Contains(stderr.String(), `"briidge"`) {
			t.Errorf("got exit code %d, stderr %q", code, stderr.String())
		}
		if (out.Len() > 0) != (want != "") || !strings.Contains(out.String(), want) {
			t.Errorf("CNI_COMMAND %q: got stdout %q", command, out.String())
		}
	}
}

// A binary as it is downloaded, cnibox-ARCH, is cnibox. A runtime that has a plugin of that name gets an
// error, and a longer name of a plugin is that plugin.
func TestRunDownloaded(t *testing.T) {
	for name, tt := range map[string]struct {
		command string
		exit    int
		want    string
	}{
		"cnibox-amd64":             {"", 0, "cnibox install DIR"},
		"cnibox-0.2.0-linux-armv7": {"", 0, "cnibox install DIR"},
		"cnibox-arm64":             {"ADD", 2, `"code": 4`},
		"cnibox-loopback":          {"VERSION", 0, "supportedVersions"},
	} {
		var out, stderr bytes.Buffer
		exit := applets.Run(t.Context(), "/tmp/"+name, applet.Process{
			Getenv: func(key string) string { return map[string]string{"CNI_COMMAND": tt.command}[key] },
			Stdin:  strings.NewReader(`{"cniVersion":"1.0.0"}`), Stdout: &out, Stderr: &stderr,
		})
		if exit != tt.exit || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s: exit code %d, %s%s", name, exit, out.String(), stderr.String())
		}
	}
}

// Errors of cni-exec have the cniVersion of the network.
func TestCNIExecErrorVersion(t *testing.T) {
	dir := t.TempDir()
	conf := `{"cniVersion":"0.4.0","name":"demo","plugins":[{"type":"loopback"}]}`
	if err := os.WriteFile(filepath.Join(dir, "demo.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	for verb, operands := range map[string][]string{"add": {"/nowhere"}, "check": {"/nowhere"}, "del": {"/proc/self/ns/net"}} {
		var out, diag strings.Builder
		args := append(append([]string{verb, "demo"}, operands...), "-o", "json", "--conf-dir", dir, "--cache-dir", filepath.Join(dir, "cache"), "-i", "a/b")
		exit := applets.Run(context.Background(), "cni-exec", applet.Process{
			Args: args, Getenv: func(string) string { return "" }, Stdout: &out, Stderr: &diag})
		if exit != 1 || !strings.Contains(out.String(), `"cniVersion": "0.4.0"`) || !strings.Contains(out.String(), "CNI_IFNAME") {
			t.Errorf("%s: exit code %d: %s%s", verb, exit, out.String(), diag.String())
		}
	}
}
