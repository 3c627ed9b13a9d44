package twin

import (
	"fmt"
	"regexp"
	"strings"
)

// A namer replaces what differs between two runs of the same plugin: random names and MAC
// addresses, and paths.
type namer struct {
	asked string   // the case in lower case: a MAC address in it is not random
	paths []string // arguments of strings.NewReplacer
	links map[string]string
}

var (
	madeLink = regexp.MustCompile(`\b(veth[0-9a-f]{8}|bwp[0-9a-f]{12})\b`)
	anyMAC   = regexp.MustCompile(`(?i)\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)
)

// plain replaces these in a text. Links are numbered in the order in which they are first seen.
func (n *namer) plain(s string) string {
	s = strings.NewReplacer(n.paths...).Replace(s)
	s = madeLink.ReplaceAllStringFunc(s, func(name string) string {
		if n.links == nil {
			n.links = map[string]string{}
		}
		if n.links[name] == "" {
			n.links[name] = fmt.Sprintf("%s#%d", strings.TrimRight(name[:4], "0123456789abcdef"), len(n.links)+1)
		}
		return n.links[name]
	})
	return anyMAC.ReplaceAllStringFunc(s, func(m string) string {
		low := strings.ToLower(m)
		if strings.Contains(n.asked, low) || low == "00:00:00:00:00:00" || low == "ff:ff:ff:ff:ff:ff" {
			return m
		}
		return "MAC"
	})
}

// link returns the kernel's name of a link.
func (n *namer) link(plain string) string {
	for name, p := range n.links {
		if p == plain {
			return name
		}
	}
	return plain
}
