package dhcp

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A Config is the configuration of the leases of one interface. It is written to disk as JSON.
type Config struct {
	NetNS  string `json:"netns"` // path
	IfName string `json:"link"`  // the interface in it
	V4     bool   `json:"v4"`    // DHCPv4
	V6     bool   `json:"v6"`    // DHCPv6

	ClientID []byte   `json:"clientID"`          // DHCPv4, as in option 61
	DUID     []byte   `json:"duid"`              // DHCPv6, with its type
	Send     []Option `json:"send,omitempty"`    // in every DHCPv4 request; nothing that the client sets itself
	Request  []byte   `json:"request,omitempty"` // codes of option 55

	Priority int  `json:"priority,omitempty"` // metric of all routes; 0: the kernel's
	KeepMTU  bool `json:"keepMTU,omitempty"`  // ignore option 26 for the link
}

// Settings are those of a daemon, the same for all its leases. No time may be 0.
type Settings struct {
	Root           string        // precedes every path of a namespace
	Broadcast      bool          // ask servers to broadcast their answers
	Timeout        time.Duration // for an answer to one packet, at most
	Pause          time.Duration // between two rounds without success, at most
	AcquireTimeout time.Duration // for a first lease

	Log func(line string) // never nil
}

// firstWait is the wait for the first answer before the request is sent again. RFC 2131 section 4.1
// uses 4 s and doubles it, as this client does; but here the link is new, and the network behind it
// often drops the first packets.
const firstWait = 250 * time.Millisecond

func wrap(what string, err error) error { return fmt.Errorf("%s: %w", what, err) }

// A backoff is a series of waits, each twice as long as the one before and randomized, so that hosts
// that start together do not ask together.
type backoff struct{ next, longest time.Duration }

// wait returns the next wait, randomized by a quarter.
func (b *backoff) wait() time.Duration {
	d := min(b.next, b.longest)
	b.next = min(2*b.next, b.longest)
	return jitter(d)
}

// jitter returns a random time from 3/4 to 5/4 of d; 0 if d is negative.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - d/4 + rand.N(d/2+1)
}
