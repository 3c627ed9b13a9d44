package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"cnibox/nft"
	"cnibox/rtnl"
)

// proveEmpty looks for everything that an attachment can leave. It reads the kernel's state and the
// disk, without cnibox.
func (w *world) proveEmpty() error {
	return w.page.step(func() (string, error) {
		text := "left behind: no link, no rule, no lease, no cached result"
		var left []string
		for _, look := range []func() ([]string, error){w.leftLinks, w.leftRules, leftLeases, leftResults} {
			found, err := look()
			if err != nil {
				return text, err
			}
			left = append(left, found...)
		}
		if len(left) > 0 {
			return "left behind: nothing", fmt.Errorf("still there: %s", strings.Join(left, ", "))
		}
		return text, nil
	})
}

// leftLinks finds ports of the bridge, and links in the containers. The bridge itself stays for the
// next container.
func (w *world) leftLinks() (left []string, err error) {
	links, err := w.hostLinks.Links()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Master != 0 {
			left = append(left, "host link "+l.Name)
		}
	}
	for _, c := range []*container{w.web, w.client} {
		conn, err := rtnl.Dial(c.netns.NS)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		if _, err := conn.Link("eth0"); !errors.Is(err, os.ErrNotExist) {
			left = append(left, "link eth0 of "+c.name)
		}
	}
	return left, nil
}

// leftRules finds elements of the containers in our tables.
func (w *world) leftRules() (left []string, err error) {
	table := nft.Open(w.host)
	for _, c := range []*container{w.web, w.client} {
		elements, err := table.Owned(c.attachment())
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			left = append(left, "rule "+e.String())
		}
	}
	return left, nil
}

// leftLeases finds lease files, whose names are addresses.
func leftLeases() (left []string, err error) {
	files, err := filepath.Glob("/var/lib/cni/networks/" + network + "/*")
	for _, f := range files {
		if ip, err := netip.ParseAddr(filepath.Base(f)); err == nil {
			left = append(left, "lease "+ip.String())
		}
	}
	return left, err
}

// leftResults finds entries of libcni's cache.
func leftResults() (left []string, err error) {
	files, err := filepath.Glob("/var/lib/cni/results/*")
	for _, f := range files {
		left = append(left, "result "+filepath.Base(f))
	}
	return left, err
}
