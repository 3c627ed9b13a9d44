package spell

import "testing"

func TestNearest(t *testing.T) {
	names := []string{"bridge", "host-local", "portmap", "ptp", "static", "tap", "tuning", "vrf"}
	for name, want := range map[string]string{
		"brigde": "bridge", "brdige": "bridge", "Bridge": "bridge", "bridg": "bridge", "hostlocal": "host-local", "host": "host-local",
		"portmapp": "portmap", "ortmap": "portmap", "tunning": "tuning", "pp": "", "ptpp": "ptp", "tab": "tap",
		"theirs": "", "": "", "x": "", "vfr": "vrf",
	} {
		if got := Nearest(name, names); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"bridge", "bridge", 0}, {"brigde", "bridge", 1},
		{"portmapp", "portmap", 1}, {"ortmap", "portmap", 1}, {"tunning", "tuning", 1}, {"ptp", "bridge", 6},
	} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
