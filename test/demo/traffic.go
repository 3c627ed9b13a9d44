package main

import (
	"fmt"
	"net/netip"
)

// A try is one connection: from where, to which address, and the source address that the server
// must see.
type try struct {
	from string
	at   *place
	to   netip.AddrPort
	seen netip.Addr // source address the server must see; zero: any
	text string     // description
}

// traffic starts servers in web and outside, and connects to them from everywhere.
func (w *world) traffic() error {
	web, client := &place{w.web.netns.NS}, &place{w.client.netns.NS}
	host, outside := &place{w.host}, &place{w.outside.NS}
	for _, p := range []*place{web, outside} {
		stop, err := p.serve(containerPort)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := w.ping(client); err != nil {
		return err
	}
	web4, _ := w.web.addr(is4)
	client4, _ := w.client.addr(is4)
	direct := netip.AddrPortFrom(web4, containerPort)
	published := netip.AddrPortFrom(hostAddr.Addr(), hostPort)
	localhost := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), hostPort)
	away := netip.AddrPortFrom(outsideAddr.Addr(), containerPort)
	for _, t := range []try{
		{"client", client, direct, client4, "direct"},
		{"outside", outside, published, outsideAddr.Addr(), "published port"},
		{"host", host, localhost, netip.Addr{}, "published port"},
		{"client", client, published, netip.Addr{}, "published port"},
		{"web", web, published, netip.Addr{}, "own published port"},
		{"client", client, away, hostAddr.Addr(), "masqueraded"},
	} {
		if err := w.talk(t); err != nil {
			return err
		}
	}
	return w.page.step(func() (string, error) {
		err := client.datagram(direct)
		return fmt.Sprintf("%-7s → %-19s UDP %s", "client", direct, "direct"), err
	})
}

// ping sends an echo request to web's address of each family.
func (w *world) ping(client *place) error {
	for _, family := range []func(netip.Addr) bool{is4, is6} {
		to, ok := w.web.addr(family)
		if !ok {
			continue
		}
		err := w.page.step(func() (string, error) {
			return fmt.Sprintf("%-7s → %-19s ping", "client", to), client.ping(to)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// talk sends a megabyte by TCP and compares the echo.
func (w *world) talk(t try) error {
	return w.page.step(func() (string, error) {
		seen, err := t.at.echo(t.to)
		text := fmt.Sprintf("%-7s → %-19s TCP %s, as %s", t.from, t.to, t.text, seen.Addr())
		if err == nil && t.seen.IsValid() && seen.Addr() != t.seen {
			err = fmt.Errorf("%s was seen as %s, not as %s", t.from, seen.Addr(), t.seen)
		}
		return text, err
	})
}
