package spec

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"
)

// keyLength is the length of [Attachment.Key], in characters.
const keyLength = 24

// An Attachment names one interface of one container on one network. It owns
// leases, nftables elements and cache entries.
// The names are not checked here: [NewRequest] has done that for those of a
// request, and other callers call [CheckNetworkName], [CheckContainerID] and [CheckIfName]. It
// compares with == and serves as a map key.
type Attachment struct {
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"`
}

// Key returns 8 hex digits of the network and 16 of all three names. It marks
// what the attachment owns in the kernel and must never change.
//
// It is a hash since the names themselves are too long for what they mark: the name
// of a link has 15 bytes and a container ID alone may have 255. 64 bits of it
// keep the attachments of a host apart. No checked name has a NUL byte, so no two
// triples give the same input.
func (a Attachment) Key() string {
	all := sha512.Sum512([]byte(a.Network + "\x00" + a.ContainerID + "\x00" + a.IfName))
	return NetworkKey(a.Network) + hex.EncodeToString(all[:8])
}

// NetworkKey returns the 8 hex digits with which the keys of all attachments of a network
// begin. Another network may have the same, and a name can be chosen so that it has:
// what a network owns is decided by [LabelOf].
func NetworkKey(network string) string {
	sum := sha512.Sum512([]byte(network))
	return hex.EncodeToString(sum[:4])
}

// String returns network/container/interface, for messages.
func (a Attachment) String() string { return a.Network + "/" + a.ContainerID + "/" + a.IfName }

// Label returns the key, a blank and the three names, cut to at most max bytes, of which
// it needs 91. It is for people who read link aliases and nftables comments; code compares
// the key ([LabelKey]) and the network ([LabelOf]).
// A cut may go through the container and the interface, never through the key and the
// network: of a name too long for it there is the beginning and a hash.
func (a Attachment) Label(max int) string {
	key := a.Key()
	if room := max - len(key) - len(" /"); len(a.Network) > room {
		hash := networkHash(a.Network)
		a.Network = a.Network[:room-len(hash)] + hash
	}
	label := key + " " + a.String()
	return label[:min(len(label), max)]
}

// networkHash stands in a label for what it has no room for of a network's name. No name
// has a "~". With 256 bits no second name of the same hash can be found.
func networkHash(network string) string {
	sum := sha512.Sum512([]byte(network))
	return "~" + hex.EncodeToString(sum[:32])
}

// LabelOf reports whether a label is that of an attachment of the network, by the whole
// name. Anything may come in here, see [LabelKey].
func LabelOf(label, network string) bool {
	_, names, _ := strings.Cut(label, " ")
	name, _, whole := strings.Cut(names, "/")
	if LabelKey(label) == "" || !whole {
		return false
	}
	begin, _, long := strings.Cut(name, "~")
	return name == network || long && strings.HasPrefix(network, begin) && name == begin+networkHash(network)
}

// LabelKey returns the key a label begins with, or "" if that is not a label.
// Links and rules of others have comments too, so anything may come in here.
func LabelKey(label string) string {
	key, _, _ := strings.Cut(label, " ")
	if !Hashed(key, "", keyLength) {
		return ""
	}
	return key
}

// Hashed reports whether a name is the prefix and so many hex digits, as the names that
// plugins make up are.
func Hashed(name, prefix string, digits int) bool {
	hex, ok := strings.CutPrefix(name, prefix)
	return ok && len(hex) == digits && strings.Trim(hex, "0123456789abcdef") == ""
}

// LabelNames returns the attachment of a label, as far as its names are whole; false: they were
// cut, or it is not a label.
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
