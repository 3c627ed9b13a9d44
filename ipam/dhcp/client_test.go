package dhcp

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"cnibox/rtnl"
)

// secs of a REQUEST is that of the preceding DISCOVER; every other message has the elapsed time
// (RFC 2131).
func TestSecsOfRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client4{iface: &iface{link: &rtnl.Link{MAC: ourMAC}}, Settings: &Settings{}, begin: time.Now()}
		l := &Lease{Address: netip.MustParsePrefix("10.9.0.10/24"), Server: []byte{10, 9, 0, 1}}
		for _, tt := range []struct {
			step
			want uint16
		}{{discover, 5}, {request, 5}, {discover, 15}, {request, 15}, {rebind, 25}} {
			time.Sleep(5 * time.Second)
			if m, _, err := c.nextRequest(tt.step, l); err != nil || m.secs != tt.want {
				t.Errorf("step %d: %d s, %v, want %d", tt.step, m.secs, err, tt.want)
			}
		}
	})
}

// The elapsed time of the first message of an exchange is 0 (RFC 8415).
func TestElapsedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client6{}
		for _, kind := range []byte{solicit6, request6, solicit6} {
			for _, want := range []time.Duration{0, time.Second} {
				if m := c.message(kind, nil); m.elapsed != want {
					t.Errorf("type %d: %s, want %s", kind, m.elapsed, want)
				}
				time.Sleep(time.Second)
			}
		}
	})
}
