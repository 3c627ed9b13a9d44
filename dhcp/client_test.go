package dhcp

import (
	"net/netip"
	"testing"
	"time"

	"cnibox/rtnl"
)

// A REQUEST has the secs of the DISCOVER before it, and nothing else has.
func TestSecs(t *testing.T) {
	c := &client4{place: &place{link: &rtnl.Link{MAC: ourMAC}}, Settings: &Settings{}, begin: time.Now()}
	l := &Lease{Address: netip.MustParsePrefix("10.9.0.10/24"), Server: []byte{10, 9, 0, 1}}
	for _, tt := range []struct {
		step
		want uint16
	}{{discover, 5}, {request, 5}, {discover, 15}, {request, 15}, {rebind, 25}} {
		if tt.step != request {
			c.begin = time.Now().Add(-time.Duration(tt.want) * time.Second)
		} else {
			c.begin = time.Now().Add(-time.Hour)
		}
		if m, _, err := c.question(tt.step, l); err != nil || m.secs != tt.want {
			t.Errorf("step %d: %d s, %v, want %d", tt.step, m.secs, err, tt.want)
		}
	}
}

// The time since the first message of an exchange: of the first it is 0.
func TestElapsed(t *testing.T) {
	c := &client6{}
	for _, kind := range []byte{solicit6, request6, solicit6} {
		if m := c.message(kind, nil); m.elapsed >= 10*time.Millisecond {
			t.Errorf("first message of type %d: %s", kind, m.elapsed)
		}
		c.begin = c.begin.Add(-time.Second)
		if m := c.message(kind, nil); m.elapsed < time.Second {
			t.Errorf("second message of type %d: %s", kind, m.elapsed)
		}
	}
}
