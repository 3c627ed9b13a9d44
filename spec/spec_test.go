package spec

import (
	"errors"
	"strings"
	"testing"
)

// wantError requires an error with a code and a text, or with code 0 no error.
func wantError(t *testing.T, err error, code int, text string) {
	t.Helper()
	if code == 0 {
		if err != nil {
			t.Errorf("got error %v, want none", err)
		}
		return
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, want one with code %d", err, code)
	}
	if e.Code != code || !strings.Contains(err.Error(), text) {
		t.Errorf("got code %d: %v\nwant code %d: …%s…", e.Code, err, code, text)
	}
}

// env returns the environment of a verb, with valid values that pairs override.
func env(verb Verb, pairs ...string) func(string) string {
	vars := map[string]string{
		"CNI_COMMAND": string(verb), "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/a",
		"CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		vars[pairs[i]] = pairs[i+1]
	}
	return func(key string) string { return vars[key] }
}

// request returns the request for a verb and a configuration, which must be valid.
func request(t *testing.T, verb Verb, conf string, pairs ...string) *Request {
	t.Helper()
	r, err := newRequest(verb, conf, pairs...)
	if err != nil {
		t.Fatalf("request %s: %v", conf, err)
	}
	return r
}

func newRequest(verb Verb, conf string, pairs ...string) (*Request, error) {
	c, err := ReadCall(env(verb, pairs...))
	if err != nil {
		return nil, err
	}
	return NewRequest(c, []byte(conf))
}
