package dhcp

import (
	"net/netip"
	"testing"
	"time"

	"cnibox/rtnl"
)

// secs of a REQUEST is that of the preceding DISCOVER; every other message has the elapsed time
// (RFC 2131).
func TestSecsOfRequest(t *testing.T) {
	c := &client4{iface: &iface{link: &rtnl.Link{MAC: ourMAC}}, Settings: &Settings{}, begin: time.Now()}
	l := &Lease{Address: netip.MustParsePrefix("10.9.0.10/24"), Server: []byte{10, 9, 0, 1}}
	var secs uint16
	for _, tt := range []struct {
		step
		want uint16 // minimum
	}{{discover, 5}, {request, 5}, {discover, 15}, {request, 15}, {rebind, 25}} {
		c.begin = time.Now().Add(-time.Duration(tt.want) * time.Second)
		if tt.step == request {
			c.begin = time.Now().Add(-time.Hour)
		}
		m, _, err := c.nextRequest(tt.step, l)
		most := uint16(time.Since(c.begin) / time.Second)
		if err != nil || m.secs < tt.want || m.secs > most || tt.step == request && m.secs != secs {
			t.Errorf("step %d: %d s, %v, want %d to %d", tt.step, m.secs, err, tt.want, most)
		}
		secs = m.secs
	}
}

// The elapsed time of the first message of an exchange is 0 (RFC 8415).
func TestElapsedTime(t *testing.T) {
	c := &client6{}
	for _, kind := range []byte{solicit6, request6, solicit6} {
		if m := c.message(kind, nil); m.elapsed != 0 {
			t.Errorf("first message of type %d: %s", kind, m.elapsed)
		}
		c.begin = c.begin.Add(-time.Second)
		if m := c.message(kind, nil); m.elapsed < time.Second {
			t.Errorf("second message of type %d: %s", kind, m.elapsed)
		}
	}
}
