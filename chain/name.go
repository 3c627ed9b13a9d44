package chain

import (
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// RunDigits is the number of hexadecimal digits in the container ID of `cni-exec run` without --name:
// 48 bits.
const RunDigits = 12

// usualIfName is the interface that titles and commands leave out.
const usualIfName = "eth0"

// Name returns the name of the container for people: that of its pod, or of `cni-exec run --name`, the
// process or the file in the path of its namespace, or the container ID.
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

// named returns the names of container and network, "c1 (edge)".
func (e *Entry) named() string { return e.Name() + " (" + e.NetworkName + ")" }

// Title names the attachment for people: "c1 (edge)", and the interface if it is not eth0.
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

// EntryOf returns an entry with only the names of an attachment, for one that is in no cache.
func EntryOf(a spec.Attachment) *Entry {
	return &Entry{NetworkName: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}

// title is [Entry.Title] of the attachment; e is nil if the cache does not have it.
func (t *RuntimeConf) title(l *List, e *Entry) string {
	if e == nil {
		e = EntryOf(t.On(l))
		e.NetNS, e.Args = t.NetNS, t.Args
	}
	return e.Title()
}

// Titles returns a function that names each attachment of a list for people: "c1 (edge)", and the
// interface if the container has several in the network.
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

// shortID shortens the IDs of runtimes, which have 64 hexadecimal digits, to the 12 that they show.
func shortID(id string) string {
	if spec.Hashed(id, "", 64) {
		return id[:12]
	}
	return id
}

// DerivedID returns the container ID that cnitool derives from a namespace's path: ten bytes of its
// SHA-512. So cnitool can delete what cni-exec has added.
func DerivedID(netns string) string {
	sum := sha512.Sum512([]byte(netns))
	return CnitoolPrefix + hex.EncodeToString(sum[:10])
}

// Operands returns a function that returns the operand by which verbs find the container of an
// attachment: its name, or its ID if the name is also that of another container of the list or of a
// network, or a shell would change it.
func Operands(list []*Entry) func(*Entry) string {
	ids := map[string]string{} // empty: several
	for _, e := range list {
		for _, name := range []string{e.Name(), e.ContainerID} {
			if id, known := ids[name]; known && id != e.ContainerID {
				ids[name] = ""
			} else {
				ids[name] = e.ContainerID
			}
		}
	}
	for _, e := range list {
		ids[e.NetworkName] = ""
	}
	return func(e *Entry) string {
		name := e.Name()
		if ids[name] != e.ContainerID || Quoted(name) != name {
			return e.ContainerID
		}
		return name
	}
}

// DelCommand returns the cni-exec command that deletes the attachment.
func (e *Entry) DelCommand() string {
	if e.isDerived() {
		return "cni-exec del " + e.NetworkName + " " + e.netnsOperand() + e.ifNameFlag()
	}
	return "cni-exec del " + e.NetworkName + " --container-id " + e.ContainerID + e.ifNameFlag()
}

// ifNameFlag returns the flag that names the interface; empty: it is the usual one.
func (e *Entry) ifNameFlag() string {
	if e.IfName == usualIfName {
		return ""
	}
	return " -i " + Quoted(e.IfName)
}

// AddCommand returns the cni-exec command that adds the attachment with the arguments of its ADD.
func (e *Entry) AddCommand() string {
	command := "cni-exec add " + e.NetworkName + " " + e.netnsOperand()
	if !e.isDerived() {
		command += " --container-id " + e.ContainerID
	}
	command += e.ifNameFlag()
	others := map[string]json.RawMessage{}
	for capability, value := range e.CapabilityArgs {
		var ports []spec.Port
		if capability != spec.CapPorts || json.Unmarshal(value, &ports) != nil {
			others[capability] = value
		}
		for _, p := range ports {
			if p.HostPort != 0 {
				command += " -p " + Quoted(p.Normal().Short())
			}
		}
	}
	if len(others) > 0 {
		text, _ := json.Marshal(others) // has been read as JSON
		command = "CAP_ARGS=" + Quoted(string(text)) + " " + command
	}
	if len(e.Args) > 0 {
		command = "CNI_ARGS=" + Quoted((&RuntimeConf{Args: e.Args}).CNIArgs()) + " " + command
	}
	return command
}

// isDerived reports whether the container ID is that of the namespace's path.
func (e *Entry) isDerived() bool {
	path := e.NetNSPath()
	return path != "" && e.ContainerID == DerivedID(path)
}

// netnsOperand returns the operand of the namespace: the name of one in /run/netns, or its path.
func (e *Entry) netnsOperand() string {
	path := e.NetNSPath()
	if name, ok := strings.CutPrefix(path, "/run/netns/"); ok && !strings.Contains(name, "/") {
		return Quoted(name)
	}
	if path == "" {
		return "NETNS"
	}
	return Quoted(path)
}

// Quoted returns a word for a shell.
func Quoted(word string) string {
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:/@%+=-[]"
	if word != "" && strings.Trim(word, safe) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
