package doctor

import (
	"testing"

	"github.com/cnibox/cnibox/applets/cniexec/trace"
)

// Equal words get the same replacement, and words that do not identify a host remain.
func TestRedact(t *testing.T) {
	r := &redactor{words: map[string]string{"edge-17": "host-1", "0123456789ab": "container-1"}, names: []string{"0123456789ab", "edge-17"}, count: map[string]int{}}
	tests := []struct{ text, want string }{
		{"edge-17: net/0123456789ab/eth0", "host-1: net/container-1/eth0"},
		{"10.1.0.2/24, fd00::1/64, 192.168.1.1, 100.64.0.1, 169.254.1.1, 127.0.0.53", "10.1.0.2/24, fd00::1/64, 192.168.1.1, 100.64.0.1, 169.254.1.1, 127.0.0.53"},
		{"0.0.0.0/0 ::/0 224.0.0.1", "0.0.0.0/0 ::/0 224.0.0.1"},
		{"203.0.113.9/24 via 203.0.113.1.", "address-1/24 via address-2."},
		{`"203.0.113.9", [2001:db8::1]`, `"address-1", [address-3]`},
		{"mac 02:00:5e:10:00:01 and 02:00:5e:10:00:01, 00:00:00:00:00:00", "mac mac-1 and mac-1, 00:00:00:00:00:00"},
		{"https://203.0.113.9:6443/ 203.0.113.9:53 [2001:db8::1]:53 10.0.0.1-203.0.113.1 ::ffff:203.0.113.1%eth0", "https://address-1:6443/ address-1:53 [address-3]:53 10.0.0.1-address-2 address-4%eth0"},
		{"mac=02-00-5e-10-00-01 0200.5e10.0001, at 15:23:38, 2001:db8:1:2:3:4:5:6", "mac=mac-2 mac-3, at 15:23:38, address-5"},
		{"version 1.1.0 of 6.18.44-fc, br0.100:", "version 1.1.0 of 6.18.44-fc, br0.100:"},
		{"", ""},
	}
	for _, tt := range tests {
		if got := r.redact(tt.text); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestLetThrough(t *testing.T) {
	got := letThrough(&trace.Rule{Family: "inet", Table: "filter", Chain: "forward"}, "cni0")
	want := "nft insert rule inet filter forward iifname \"cni0\" accept\nnft insert rule inet filter forward oifname \"cni0\" accept"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
