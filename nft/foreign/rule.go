package foreign

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A rule is a list of expressions, which are evaluated in order until one does not match.
type rule []expr.Any

// reg is the first of the 16 registers of 4 bytes.
const reg = unix.NFT_REG32_00

func (r rule) meta(key expr.MetaKey) rule { return append(r, &expr.Meta{Key: key, Register: reg}) }

func (r rule) payload(base expr.PayloadBase, offset, size uint32) rule {
	return append(r, &expr.Payload{Base: base, Offset: offset, Len: size, DestRegister: reg})
}

func (r rule) equal(v ...byte) rule {
	return append(r, &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: v})
}

// mask keeps the bits that are set in v.
func (r rule) mask(v ...byte) rule {
	return append(r, &expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(v)), Mask: v, Xor: make([]byte, len(v))})
}

// addr loads the destination or source address.
func (r rule) addr(family byte, dst bool) rule {
	offset, size := uint32(saddr4At), uint32(addr4Len)
	if family == v6 {
		offset, size = saddr6At, addr6Len
	}
	if dst {
		offset += size
	}
	return r.payload(expr.PayloadBaseNetworkHeader, offset, size)
}

// localDst matches packets to an address of this host.
func (r rule) localDst() rule {
	return append(r, &expr.Fib{Register: reg, ResultADDRTYPE: true, FlagDADDR: true}).equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)...)
}
