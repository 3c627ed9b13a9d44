package rtnl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// Numbers of the kernel that mean that a thing is not there, by request.
func TestAbsent(t *testing.T) {
	for name, tt := range map[string]struct {
		errno   unix.Errno
		request uint16
		is      error
		absent  bool
	}{
		"no device":   {unix.ENODEV, unix.RTM_GETLINK, unix.ENODEV, true},
		"no route":    {unix.ESRCH, unix.RTM_DELROUTE, unix.ESRCH, true},
		"no address":  {unix.EADDRNOTAVAIL, unix.RTM_DELADDR, unix.EADDRNOTAVAIL, true},
		"bad address": {unix.EADDRNOTAVAIL, unix.RTM_NEWADDR, unix.EADDRNOTAVAIL, false},
		"there is":    {unix.EEXIST, unix.RTM_NEWLINK, os.ErrExist, false},
	} {
		err := absent(&netlink.Error{Errno: tt.errno, Text: "why"}, tt.request)
		if want := tt.errno.Error() + ": why"; !errors.Is(err, tt.is) || errors.Is(err, os.ErrNotExist) != tt.absent || err.Error() != want {
			t.Errorf("%s: got %v, absent %t; want %s, %t", name, err, errors.Is(err, os.ErrNotExist), want, tt.absent)
		}
	}
	if err := absent(nil, unix.RTM_GETLINK); err != nil {
		t.Errorf("no error: got %v", err)
	}
}

// The bytes stand for: bridge vlan add dev #7 vid 5 pvid untagged; … vid 10-20.
func TestPortVLANs(t *testing.T) {
	vlans := []VLANRange{{From: 5, PVID: true, Untagged: true}, {From: 10, To: 20}}
	op := NewPortVLANs(7, vlans)
	if op.err != nil {
		t.Fatal(op.err)
	}
	const want = "07000000" + "07000000" + "0000000000000000" + // struct ifinfomsg: AF_BRIDGE, #7
		"1c001a80" + // IFLA_AF_SPEC, nested
		"08000200" + "06000500" + "08000200" + "08000a00" + "08000200" + "10001400"
	got := append([]byte(nil), op.req.Data...)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && hex.EncodeToString(got) != want {
		t.Errorf("got  %x\nwant %s", got, want)
	}
	if op.req.Type != unix.RTM_SETLINK || DropPortVLANs(7, vlans).req.Type != unix.RTM_DELLINK {
		t.Error("adding is RTM_SETLINK, deleting RTM_DELLINK")
	}
	index, back, err := decodePortVLANs(got)
	vlans[0].To = 5
	if err != nil || index != 7 || !reflect.DeepEqual(back, vlans) {
		t.Errorf("decoded: got #%d %+v, %v; want %+v", index, back, err, vlans)
	}
	for name, v := range map[string]VLANRange{
		"zero": {}, "4095": {From: 4095}, "backwards past": {From: 1, To: 4095}, "range as PVID": {From: 1, To: 2, PVID: true},
	} {
		if NewPortVLANs(7, []VLANRange{v}).err == nil {
			t.Errorf("%s: %+v is taken", name, v)
		}
	}
}

// An old kernel ignores the filter of a dump, so it is applied here again.
func TestRouteFilterMatches(t *testing.T) {
	r := Route{Dst: netip.MustParsePrefix("10.0.0.0/8"), Link: 3, Table: 254}
	for f, want := range map[RouteFilter]bool{
		{Table: 254}:             true,
		{Table: 255}:             false,
		{Table: 254, Link: 3}:    true,
		{Table: 254, Link: 4}:    false,
		{Table: 254, Dst: r.Dst}: true,
		{Table: 254, Dst: netip.MustParsePrefix("10.0.0.0/9")}: false,
		{Table: 254, Family: unix.AF_INET}:                     true,
		{Table: 254, Family: unix.AF_INET6}:                    false,
	} {
		if got := f.matches(r); got != want {
			t.Errorf("%+v: got %t, want %t", f, got, want)
		}
	}
}

func TestAddrBroadcast(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.1.2.3/24": "10.1.2.255", "10.1.2.3/8": "10.255.255.255", "10.1.2.3/0": "255.255.255.255",
		"10.1.2.2/30": "10.1.2.3", "10.1.2.3/31": "invalid IP", "10.1.2.3/32": "invalid IP", "2001:db8::1/64": "invalid IP",
	} {
		b, err := Addr{Prefix: netip.MustParsePrefix(prefix)}.encode(1)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := netip.AddrFromSlice(netlink.Attr(b[unix.SizeofIfAddrmsg:], unix.IFA_BROADCAST))
		if got.String() != want {
			t.Errorf("%s: got %s, want %s", prefix, got, want)
		}
	}
}

// What no link has that a test can make: the bytes are those of hardware.
func TestLinkOfHardware(t *testing.T) {
	b := encode(linkHeader(0, 7, 0, 0), func(b *netlink.Buf) {
		b.Bytes(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 9})
		b.Bytes(unix.IFLA_PERM_ADDRESS, []byte{2, 0, 0, 0, 0, 1})
		b.Text(unix.IFLA_PARENT_DEV_NAME, "0000:3b:00.2")
	})
	var l Link
	if err := l.decode(b); err != nil || l.MAC.String() != "02:00:00:00:00:09" || l.PermMAC.String() != "02:00:00:00:00:01" || l.Device != "0000:3b:00.2" {
		t.Errorf("got %+v, %v", l, err)
	}
}

// A link of a kernel newer than all we know: the attributes at the end are
// unknown, the statistics longer than today's.
func TestLinkOfNewerKernel(t *testing.T) {
	b := linkHeader(0, 7, unix.IFF_UP, 0)
	b = encode(b, func(b *netlink.Buf) {
		b.Text(unix.IFLA_IFNAME, "eth0")
		b.Bytes(unix.IFLA_STATS64, make([]byte, 400))
		b.Bytes(4000, []byte("new"))
	})
	var l Link
	if err := l.decode(b); err != nil || l.Name != "eth0" || l.Index != 7 || !l.Up {
		t.Errorf("got %+v, %v", l, err)
	}
	if err := l.decode(b[:10]); err == nil {
		t.Error("a cut header is taken")
	}
}

// What a rule asks for that Rule has no word for is told, and what the kernel tells of
// every rule is none of that.
func TestRuleMore(t *testing.T) {
	plain := func(b *netlink.Buf) {
		b.U32(unix.FRA_TABLE, 100)
		b.U32(unix.FRA_SUPPRESS_PREFIXLEN, 1<<32-1)
		b.Bytes(unix.FRA_PROTOCOL, []byte{3})
		b.U32(unix.FRA_FWMARK, 1)
		b.U32(unix.FRA_FWMASK, 1<<32-1)
	}
	header := func(at int, v byte) []byte {
		h := []byte{unix.AF_INET, 0, 0, 0, 100, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0}
		h[at] = v
		return h
	}
	invert := header(0, unix.AF_INET)
	binary.NativeEndian.PutUint32(invert[8:], unix.FIB_RULE_INVERT)
	for name, tt := range map[string]struct {
		msg  []byte
		want bool
	}{
		"nothing":     {encode(header(0, unix.AF_INET), plain), false},
		"TOS":         {encode(header(3, 4), plain), true},
		"blackhole":   {encode(header(7, unix.FR_ACT_BLACKHOLE), plain), true},
		"not":         {encode(invert, plain), true},
		"protocol":    {encode(header(0, unix.AF_INET), func(b *netlink.Buf) { b.Bytes(unix.FRA_IP_PROTO, []byte{6}) }), true},
		"suppressing": {encode(header(0, unix.AF_INET), func(b *netlink.Buf) { b.U32(unix.FRA_SUPPRESS_PREFIXLEN, 0) }), true},
	} {
		var r Rule
		if err := r.decode(tt.msg); err != nil || r.More != tt.want {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// FuzzDecode gives all decoders bytes that no kernel sends: none may panic or hang.
func FuzzDecode(f *testing.F) {
	for _, op := range []Op{
		NewLink(LinkSpec{Name: "a", Peer: &LinkSpec{Name: "b"}, MTU: 1}),
		NewPortVLANs(7, []VLANRange{{From: 5}, {From: 10, To: 20}}),
		NewRule(Rule{Table: 70000, IIF: "lo"}),
		NewRoute(Route{Dst: netip.MustParsePrefix("10.0.0.0/8"), MTU: 1}),
	} {
		f.Add(op.req.Data)
	}
	f.Add(encode(routeHeader{family: unix.AF_INET}.encode(), func(b *netlink.Buf) {
		b.Bytes(unix.RTA_MULTIPATH, append([]byte{8, 0, 0, 0, 7, 0, 0, 0}, 8, 0, 0, 0, 8, 0, 0, 0))
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l Link
		_ = l.decode(b)
		var a Addr
		_, _ = a.decode(b)
		_, _ = decodeRoute(b)
		var r Rule
		_ = r.decode(b)
		_, _, _ = decodePortVLANs(b)
	})
}
