package cniexec

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/spec"
)

// The cache is in --cache-dir, by default in the state directory. Plugins get the state directory
// in their environment.
func TestStateDirs(t *testing.T) {
	wd, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args, env    string
		state, cache string // "": plugins get none
		code         int
	}{
		"variable":           {"", "/s", "/s", "/s", 0},
		"flag":               {"--state-dir /f", "/s", "/f", "/f", 0},
		"flag, bad variable": {"--state-dir /f", "s", "/f", "/f", 0},
		"relative flag":      {"--state-dir f", "", wd + "/f", wd + "/f", 0},
		"cache":              {"--cache-dir c", "/s", "/s", wd + "/c", 0},
		"cache alone":        {"--cache-dir /c", "", "", "/c", 0},
		"both flags":         {"--cache-dir /c --state-dir=/f", "/s", "/f", "/c", 0},
		"bad variable":       {"", "s", "", "", spec.CodeEnv},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			getenv := func(k string) string { return map[string]string{"CNIBOX_STATE": tt.env}[k] }
			environ := []string{"A=b"}
			if tt.env != "" {
				environ = append(environ, "CNIBOX_STATE="+tt.env)
			}
			c, _, err := parse(applet.Process{Args: append([]string{"add"}, strings.Fields(tt.args)...), Getenv: getenv, Environ: environ})
			if err != nil {
				t.Fatal(err)
			}
			err = c.prepare()
			if tt.code != 0 {
				if err == nil || spec.AsError(err).Code != tt.code {
					t.Errorf("got %v, want code %d", err, tt.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := c.runner.Cache.Dir; got != tt.cache {
				t.Errorf("the cache is in %s, want %s", got, tt.cache)
			}
			var got []string
			for _, v := range c.local().Environ {
				if dir, ok := strings.CutPrefix(v, "CNIBOX_STATE="); ok {
					got = append(got, dir)
				}
			}
			want := []string{tt.state}
			if tt.state == "" {
				want = nil
			}
			if !slices.Equal(got, want) {
				t.Errorf("plugins see %q, want %q", got, want)
			}
			if !slices.Equal(c.Environ, environ) {
				t.Errorf("the command of run sees %q, want %q", c.Environ, environ)
			}
		})
	}
}
