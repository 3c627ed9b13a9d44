package kerneltest

import "github.com/cnibox/cnibox/rtnl"

// queues writes the queueing disciplines of a link that were set explicitly, and where its
// filters redirect what it receives.
func (s *snapshot) queues(l rtnl.Link) {
	s.t.Helper()
	root, ingress, err := s.c.Qdiscs(l.Index)
	s.must(err)
	if root != nil {
		s.add("qdisc %s %s %d bytes/s, burst %d, limit %d", l.Name, root.Kind, root.TBF.Rate, root.TBF.Burst, root.TBF.Limit)
	}
	if ingress == nil {
		return
	}
	to, err := s.c.Redirects(l.Index)
	s.must(err)
	s.add("qdisc %s %s", l.Name, ingress.Kind)
	for _, index := range to {
		s.add("redirect %s to %s", l.Name, s.names[index])
	}
}
