package chain

import "cnibox/internal/json"

// place returns the path of the attachment's network namespace; empty if the
// entry does not tell.
//
// libcni before 1.2 (containerd 1.6, which Debian 12 has) writes no netns. The result
// has it then: the sandbox of the interface, from specification 0.3.0 on.
func (e *Entry) place() string {
	if e.NetNS != "" {
		return e.NetNS
	}
	var r struct {
		Interfaces []struct{ Name, Sandbox string }
	}
	if json.Unmarshal(e.Result, &r) != nil {
		return ""
	}
	for _, i := range r.Interfaces {
		if i.Name == e.IfName && i.Sandbox != "" {
			return i.Sandbox
		}
	}
	return ""
}
