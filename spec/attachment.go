package spec

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"
)

// keyLength is the length of [Attachment.Key], in characters.
const keyLength = 24

// An Attachment names one interface of one container on one network. It owns leases, nftables
// elements and cache entries. The names are not checked here: [NewRequest] checks those of a
// request, and other callers call [CheckNetworkName], [CheckContainerID] and [CheckIfName]. It
// compares with == and serves as a map key.
type Attachment struct {
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
}

// Key returns 8 hex digits of the network and 16 of all three names. It marks what the attachment
// owns in the kernel and must never change.
//
// It is a hash since the names are too long for the kernel's objects: the name of a link has 15
// bytes, and a container ID alone may have 255. The 64 bits of the three names distinguish the
// attachments of a host. No checked name has a NUL byte, so no two triples give the same input.
func (a Attachment) Key() string {
	all := sha512.Sum512([]byte(a.Network + "\x00" + a.ContainerID + "\x00" + a.IfName))
	return NetworkKey(a.Network) + hex.EncodeToString(all[:8])
}

// NetworkKey returns the first 8 hex digits of the keys of all attachments of a network. Another
// network may have the same digits, and a name can be chosen to have them: use [LabelOf] to decide
// what a network owns.
func NetworkKey(network string) string {
	sum := sha512.Sum512([]byte(network))
	return hex.EncodeToString(sum[:4])
}

// String returns network/container/interface, for messages.
func (a Attachment) String() string { return a.Network + "/" + a.ContainerID + "/" + a.IfName }

// Label returns the key, a blank and the three names, cut to at most max bytes, at least 91. It is
// for people who read link aliases and nftables comments; code compares the key ([LabelKey]) and
// the network ([LabelOf]). The cut shortens the container and the interface, never the key and the
// network: a network name that is too long is replaced by its beginning and a hash.
func (a Attachment) Label(max int) string {
	key := a.Key()
	if room := max - len(key) - len(" /"); len(a.Network) > room {
		hash := networkHash(a.Network)
		a.Network = a.Network[:room-len(hash)] + hash
	}
	label := key + " " + a.String()
	return label[:min(len(label), max)]
}

// networkHash replaces the part of a network's name that does not fit into a label. No name has a
// "~". With 256 bits no second name with the same hash can be found.
func networkHash(network string) string {
	sum := sha512.Sum512([]byte(network))
	return "~" + hex.EncodeToString(sum[:32])
}

// LabelOf reports whether a label is that of an attachment of the network, by the whole name. The
// label may be any text, see [LabelKey].
func LabelOf(label, network string) bool {
	_, names, _ := strings.Cut(label, " ")
	name, _, whole := strings.Cut(names, "/")
	if LabelKey(label) == "" || !whole {
		return false
	}
	begin, _, long := strings.Cut(name, "~")
	return name == network || long && strings.HasPrefix(network, begin) && name == begin+networkHash(network)
}

// LabelKey returns the key at the beginning of a label, or "" if the text is not a label. Links and
// rules of other programs have comments too, so the label may be any text.
func LabelKey(label string) string {
	key, _, _ := strings.Cut(label, " ")
	if !Hashed(key, "", keyLength) {
		return ""
	}
	return key
}

// Hashed reports whether a name is the prefix followed by so many hex digits, as in names that
// plugins generate.
func Hashed(name, prefix string, digits int) bool {
	hex, ok := strings.CutPrefix(name, prefix)
	return ok && len(hex) == digits && strings.Trim(hex, "0123456789abcdef") == ""
}

// LabelNames returns the attachment of a label; false: its names were cut, or the text is not a
// label.
func LabelNames(label string) (a Attachment, ok bool) {
	key := LabelKey(label)
	if key == "" {
		return a, false
	}
	_, names, _ := strings.Cut(label, " ")
	var rest string
	a.Network, rest, _ = strings.Cut(names, "/")
	a.ContainerID, a.IfName, _ = strings.Cut(rest, "/")
	return a, a.Key() == key
}
