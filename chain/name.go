package chain

import (
	"path/filepath"
	"strings"

	"cnibox/spec"
)

// RunDigits is how many digits the container ID of a run without a name has: 48 bits.
const RunDigits = 12

// usualIfName is the interface that a title leaves out.
const usualIfName = "eth0"

// Name is that of the container's pod, that of `run --name`, the process or the file that the path
// of its namespace has, or the container's ID.
func (e *Entry) Name() string {
	pod, space := "", ""
	for _, arg := range e.Args {
		switch arg[0] {
		case "K8S_POD_NAME":
			pod = arg[1]
		case "K8S_POD_NAMESPACE":
			space = arg[1]
		}
	}
	path := e.NetNSPath()
	run, isRun := strings.CutPrefix(e.ContainerID, RunPrefix)
	process, isProcess := strings.CutPrefix(path, "/proc/")
	pid, _, _ := strings.Cut(process, "/")
	switch {
	case pod != "" && space != "":
		return space + "/" + pod
	case pod != "":
		return pod
	case isRun && !spec.Hashed(run, "", RunDigits):
		return run
	case path == "" || !derived(e.ContainerID):
		return shortID(e.ContainerID)
	case isProcess && strings.Trim(pid, "0123456789") == "":
		return "pid " + pid
	}
	return filepath.Base(path)
}

// named is the container's name, and the network's.
func (e *Entry) named() string { return e.Name() + " (" + e.NetworkName + ")" }

// Title names the attachment for people: "c1 (edge)", and the interface where that is not eth0.
func (e *Entry) Title() string {
	if e.IfName == "" || e.IfName == usualIfName {
		return e.named()
	}
	return e.named() + " " + e.IfName
}

// Title is [Entry.Title] of an attachment, whose entry may be missing.
func (c *Cache) Title(a spec.Attachment) string {
	if e, err := c.Lookup(a); err == nil {
		return e.Title()
	}
	return EntryOf(a).Title()
}

// EntryOf has the names of an attachment alone: it is in no cache.
func EntryOf(a spec.Attachment) *Entry {
	return &Entry{NetworkName: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}

// title is [Entry.Title] of the attachment; e is nil where the cache does not have it.
func (t *RuntimeConf) title(l *List, e *Entry) string {
	if e == nil {
		e = EntryOf(t.on(l))
		e.NetNS, e.Args = t.NetNS, t.Args
	}
	return e.Title()
}

// Titles returns the names of attachments for people: "c1 (edge)", and the interface where the container
// has several on the network.
func Titles(list []*Entry) func(*Entry) string {
	type pair struct{ container, network string }
	count := map[pair]int{}
	for _, e := range list {
		count[pair{e.ContainerID, e.NetworkName}]++
	}
	return func(e *Entry) string {
		text := e.named()
		if count[pair{e.ContainerID, e.NetworkName}] > 1 {
			text += " " + e.IfName
		}
		return strings.TrimSpace(text)
	}
}

// derived reports whether a container ID was derived from the path of a namespace.
func derived(id string) bool {
	return strings.HasPrefix(id, CnitoolPrefix) || strings.HasPrefix(id, RunPrefix)
}

// shortID cuts the IDs of runtimes, which have 64 hex digits, as these show them.
func shortID(id string) string {
	if spec.Hashed(id, "", 64) {
		return id[:12]
	}
	return id
}
