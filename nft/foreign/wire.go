package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/nlconn"
)

// nfTables is the subsystem in the upper byte of message types: include/uapi/linux/netfilter/nfnetlink.h.
const nfTables = unix.NFNL_SUBSYS_NFTABLES << 8

// headerLen is the length of a struct nfgenmsg.
const headerLen = 4

// A change is one message of a transaction.
type change struct {
	what  string // "table NAME"
	needs string // kernel options without which the kernel rejects it
	msg   netlink.Message
	err   error // of encoding
}

// newChange returns a request to create an object.
func newChange(what, needs string, typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder)) change {
	msg, err := message(nfTables|typ, flags|netlink.Create|netlink.Acknowledge, family, body)
	return change{what, needs, msg, err}
}

// message builds a request, with numbers in network byte order.
func message(typ netlink.HeaderType, flags netlink.HeaderFlags, family byte, body func(*netlink.AttributeEncoder)) (netlink.Message, error) {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	if body != nil {
		body(ae)
	}
	attrs, err := ae.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: typ, Flags: flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}, err
}

// newTable creates a table that its socket owns.
func newTable(family byte, name string) change {
	return newChange("table "+name, "CONFIG_NF_TABLES_INET", unix.NFT_MSG_NEWTABLE, netlink.Excl, family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, name)
		ae.Uint32(unix.NFTA_TABLE_FLAGS, tableOwner)
	})
}

// newChain creates a base chain of type filter whose policy is accept.
func newChain(family byte, table, name string, hook int, priority int32) change {
	return newChange("chain "+name+" of table "+table, "", unix.NFT_MSG_NEWCHAIN, 0, family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_CHAIN_TABLE, table)
		ae.String(unix.NFTA_CHAIN_NAME, name)
		ae.Nested(unix.NFTA_CHAIN_HOOK, func(ae *netlink.AttributeEncoder) error {
			ae.Uint32(unix.NFTA_HOOK_HOOKNUM, uint32(hook))
			ae.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(priority))
			return nil
		})
		ae.Uint32(unix.NFTA_CHAIN_POLICY, uint32(expr.VerdictAccept))
		ae.String(unix.NFTA_CHAIN_TYPE, "filter")
	})
}

// newRule appends a rule to a chain.
func newRule(family byte, table, chain string, r rule) change {
	return newChange("rule of table "+table, "CONFIG_NFT_FIB_INET or CONFIG_NFT_LIMIT", unix.NFT_MSG_NEWRULE, netlink.Append, family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, table)
		ae.String(unix.NFTA_RULE_CHAIN, chain)
		ae.Nested(unix.NFTA_RULE_EXPRESSIONS, func(ae *netlink.AttributeEncoder) error {
			for _, e := range r {
				data, err := expr.Marshal(family, e)
				if err != nil {
					return err
				}
				ae.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
			}
			return nil
		})
	})
}

// A changeError is the kernel's error about one change.
type changeError struct {
	what string
	err  error
}

func (e *changeError) Error() string { return "nft: " + e.what + ": " + e.err.Error() }

func (e *changeError) Unwrap() error { return e.err }

// commit makes changes in one transaction. The error is that of the first one that the kernel rejects.
func commit(nl *nlconn.Conn, changes []change) error {
	if err := fault.Check("nft batch"); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	end := func(typ netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: typ}, Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	ms := []netlink.Message{end(unix.NFNL_MSG_BATCH_BEGIN)}
	for _, c := range changes {
		if c.err != nil {
			return fmt.Errorf("nft: %s: %w", c.what, c.err)
		}
		ms = append(ms, c.msg)
	}
	ms = append(ms, end(unix.NFNL_MSG_BATCH_END))
	fault.Done(fault.Transactions, 1)
	answers, err := nl.Batch(ms, 1)
	for i, a := range answers {
		switch {
		case a.Err == nil:
		case i == 0 || i > len(changes):
			return &changeError{"transaction", lacking(a.Err, "CONFIG_NF_TABLES")}
		default:
			return &changeError{changes[i-1].what, lacking(a.Err, changes[i-1].needs)}
		}
	}
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	return nil
}

// lacking adds the likely reason to an error of the kernel.
func lacking(err error, options string) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w (CAP_NET_ADMIN is needed)", err)
	case options == "":
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w (the kernel may lack %s)", err, options)
	}
	return err
}

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
