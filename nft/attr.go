package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"

	"cnibox/internal/nlconn"
)

// encode returns the attributes that fn writes, with numbers in network byte order, as nf_tables
// expects.
func encode(fn func(*netlink.AttributeEncoder)) ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	if fn != nil {
		fn(ae)
	}
	return ae.Encode()
}

func text(b []byte, path ...uint16) string { return nlconn.Text(b, path...) }

func num(b []byte, path ...uint16) uint64 { return nlconn.Number(b, path...) }
