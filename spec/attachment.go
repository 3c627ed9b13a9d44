package spec

import (
	"encoding/hex"
	"strings"

	"cnibox/internal/sha512"
)

// keyLength is the length of [Attachment.Key], in characters.
const keyLength = 24

// An Attachment names one interface of one container on one network. It owns
// leases, nftables elements and cache entries.
// The names are not checked here: [NewRequest] has done that for those of a
// request, and whoever makes an attachment of other text calls [CheckNetworkName],
// [CheckContainerID] and [CheckIfName]. It compares with == and serves as a map key.
type Attachment struct{ Network, ContainerID, IfName string }

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

// NetworkKey returns the 8 hex digits with which the keys of all attachments
// of a network begin.
// GC finds what a network owns by it, when nothing but the keys is left.
func NetworkKey(network string) string {
	sum := sha512.Sum512([]byte(network))
	return hex.EncodeToString(sum[:4])
}

// String returns network/container/interface, for people.
func (a Attachment) String() string { return a.Network + "/" + a.ContainerID + "/" + a.IfName }

// Label returns the key, a blank and the three names, cut to at most max
// bytes. It is what people find in link aliases and nftables comments; code
// compares the key alone ([LabelKey]).
// A cut may go through the names, never through the key, as long as max is at least
// its 24 bytes.
func (a Attachment) Label(max int) string {
	label := a.Key() + " " + a.String()
	return label[:min(len(label), max)]
}

// LabelKey returns the key a label begins with, or "" if that is no label.
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
