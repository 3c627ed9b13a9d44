package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/spec"
)

const (
	// The kinds of entries. libcni treats a file of another kind as a bare result, which an intent
	// does not have.
	kindCache  = "cniCacheV1"     // libcni's
	kindIntent = "cniboxIntentV1" // an ADD has begun and not ended; other tools skip it
)

// maxEntry is the size limit of an entry in bytes: a configuration in base64 and the largest result
// of a plugin, with room for arguments.
const maxEntry = 2*spec.MaxConf + maxStdout

// An Entry is a file of the cache. The order of its members is libcni's; members after result are
// ours, and others ignore them. CRI-O and Multus read containerId, ifName, networkName and result.
type Entry struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"` // the list, drop-in plugins inlined
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns,omitempty"`
	Args           [][2]string                `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`
	BootID         string                     `json:"cniboxBootID,omitempty"`      // of the kernel that ADD ran on
	NetNSID        string                     `json:"cniboxNetNS,omitempty"`       // device:inode of NetNS
	NetNSCookie    uint64                     `json:"cniboxNetNSCookie,omitempty"` // see [netns.NS.Cookie]; 0: unknown
	There          bool                       `json:"cniboxThere,omitempty"`       // of an intent: the interface existed before the ADD

	file string // its path
}

// Written returns when the file was written; the zero Time if it does not exist any more.
func (e *Entry) Written() time.Time {
	info, err := os.Lstat(e.file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Attachment returns the attachment of the entry.
func (e *Entry) Attachment() spec.Attachment {
	return spec.Attachment{Network: e.NetworkName, ContainerID: e.ContainerID, IfName: e.IfName}
}

// Interrupted reports whether its ADD has not ended: the process was killed, or the DEL after a
// failed ADD failed as well.
func (e *Entry) Interrupted() bool { return e.Kind == kindIntent }

// List parses the cached configuration: a list, or a single one as libcni's older interface stores
// it. It is an error if its network is not the entry's.
func (e *Entry) List() (*List, error) {
	l, err := parseAny(e.Config)
	if err != nil {
		return nil, err
	}
	if l.Name != e.NetworkName {
		return nil, fmt.Errorf("it is of network %q", l.Name)
	}
	return l, nil
}

// parseAny parses a list, or a configuration of one plugin.
func parseAny(doc []byte) (*List, error) {
	l, err := Parse(doc)
	if err == nil && len(l.Plugins) > 0 {
		return l, nil
	}
	single, serr := ParseSingle(doc)
	if serr != nil {
		return nil, errors.Join(err, serr)
	}
	return single, nil
}

// ListOnce is List, but parses a configuration once for all attachments of a session with the same one.
func (e *Entry) ListOnce(s *session.Session) (*List, error) {
	return session.Ask(s, listOf{e.NetworkName, string(e.Config)}, e.List)
}

// listOf is the key of a list.
type listOf struct{ network, config string }

// result returns the cached result, nil if there is none. v is the version of a result without one.
func (e *Entry) result(v spec.Version) (*spec.Result, error) {
	if doc := bytes.TrimSpace(e.Result); len(doc) == 0 || string(doc) == "null" {
		return nil, nil
	}
	return spec.ParseResult(e.Result, v)
}

// NetNSPath returns the path of the attachment's network namespace; empty if the entry does not
// have it.
//
// libcni before 1.2 (containerd 1.6, which Debian 12 has) stores no netns. Then the result has it:
// the sandbox of the interface, from specification 0.3.0 on.
func (e *Entry) NetNSPath() string {
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

// File returns the path of the entry's file.
func (e *Entry) File() string { return e.file }

// Namespace says whether the attachment's network namespace is still at its path: it is
// [StateAlive], [StateGone] or [StateUnknown], with the reason for the last two. A path may have been
// reused, and nothing outlives a boot. Entries of other tools have no ID of the namespace; for these
// the path decides.
func (e *Entry) Namespace() (state, why string) {
	return e.namespace(func(path string) (bool, error) {
		ns, err := netns.Open(path)
		if err != nil {
			return false, err
		}
		defer ns.Close()
		return e.in(ns), nil
	})
}

// QuickNamespace is Namespace that compares IDs alone, which the kernel may use again: entering 1,000
// namespaces for their cookies would take as long as everything else that ls does.
func (e *Entry) QuickNamespace() (state, why string) {
	return e.namespace(func(path string) (bool, error) {
		id, err := netns.IDAt(path)
		return e.NetNSID == "" || e.NetNSID == id.String(), err
	})
}

// namespace is Namespace; has reports whether the path has the namespace of the attachment.
func (e *Entry) namespace(has func(path string) (bool, error)) (state, why string) {
	path := e.NetNSPath()
	switch {
	case !e.SameBoot():
		return StateGone, "of an earlier boot"
	case path == "":
		return StateUnknown, "its namespace is not recorded"
	}
	its, err := has(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return StateGone, "no namespace " + path
	case errors.Is(err, netns.ErrNotNS):
		return StateGone, path + " is not a namespace"
	case err != nil:
		return StateUnknown, err.Error()
	case !its:
		return StateGone, path + " is another namespace now"
	}
	return StateAlive, ""
}

// Live reports whether the attachment's network namespace is known to exist at its path.
func (e *Entry) Live() bool {
	state, _ := e.Namespace()
	return state == StateAlive
}

// Gone reports whether it is known not to exist there any more.
func (e *Entry) Gone() bool {
	state, _ := e.Namespace()
	return state == StateGone
}

// open opens the attachment's network namespace; nil if the path has none. replaced reports that
// the path has another namespace.
func (e *Entry) open() (ns *netns.NS, replaced bool) {
	ns, err := netns.Open(e.NetNSPath())
	if err != nil {
		return nil, false
	}
	if e.liveIn(ns) {
		return ns, false
	}
	ns.Close()
	return nil, true
}

// liveIn is Live for the namespace at the path.
func (e *Entry) liveIn(ns *netns.NS) bool { return e.SameBoot() && e.in(ns) }

// in reports whether an open network namespace is that of the attachment, in this boot. The kernel
// reuses the ID of a deleted namespace, so the cookie counts as well. If it is unreadable without a
// privilege, or not recorded, the ID decides.
func (e *Entry) in(ns *netns.NS) bool {
	if e.NetNSID == "" {
		return true
	}
	id, err := ns.ID()
	return err == nil && id.String() == e.NetNSID && ns.HasCookie(e.NetNSCookie)
}

// Attached reports whether an attachment may be alive. An interrupted ADD is not. If a namespace is
// bound to a path, its attachment lives as long as the namespace, with or without the container. An
// attachment without a recorded namespace may be alive.
func (e *Entry) Attached() bool {
	return !e.Interrupted() && (e.Live() || e.NetNSPath() == "")
}

// SameBoot reports whether the entry is of this boot; entries of other tools have no boot ID and
// count as such. No namespace outlives a boot, and the next boot reuses paths in /run.
func (e *Entry) SameBoot() bool {
	if e.BootID == "" {
		return true
	}
	now := state.BootID()
	return now == "" || now == e.BootID
}

// ownsNothing reports whether an interrupted ADD cannot have made anything: the interface existed
// before it, and still does. It belongs to another ADD, whose entry was lost. lo does not count, since
// all namespaces have it.
func (e *Entry) ownsNothing() bool {
	if !e.Interrupted() || !e.There || e.IfName == "lo" {
		return false
	}
	ns, err := netns.Open(e.NetNSPath())
	if err != nil {
		return false
	}
	defer ns.Close()
	if !e.liveIn(ns) {
		return false
	}
	_, has, _ := ns.Look(e.IfName)
	return has
}

// identify records the network namespace at the path, and whether that has the interface.
func (e *Entry) identify(t RuntimeConf) {
	ns := t.session.NS(t.NetNS)
	if id, err := ns.ID(); err == nil {
		e.NetNSID = id.String()
	}
	e.NetNSCookie, e.There, _ = ns.Look(e.IfName) // 0 if unknown
}

// isOwn reports whether a namespace is the one in which plugins run.
func isOwn(ns *netns.NS) bool {
	own, err := ns.Same(netns.Host())
	return err == nil && own
}
