package cnibox_test

import (
	"testing"

	"cnibox/applets/cnibox"
)

func TestDistance(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"bridge", "bridge", 0}, {"brigde", "bridge", 2},
		{"portmapp", "portmap", 1}, {"ortmap", "portmap", 1}, {"tunning", "tuning", 1}, {"ptp", "bridge", 6},
	}
	for _, tt := range tests {
		if got := cnibox.Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
