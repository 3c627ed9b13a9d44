package tty

import "testing"

func TestSeveral(t *testing.T) {
	for want, list := range map[string][]string{
		"":                          nil,
		"a, b":                      {"a", "b"},
		"a, b, c, d, e":             {"a", "b", "c", "d", "e"},
		"a, b, c, d, e, and 2 more": {"a", "b", "c", "d", "e", "f", "g"},
	} {
		if got := Several(list); got != want {
			t.Errorf("%q: got %q, want %q", list, got, want)
		}
	}
}
