package rtnl

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// message appends attributes to a header.
func message(t testing.TB, header []byte, fn func(ae *netlink.AttributeEncoder)) []byte {
	t.Helper()
	b, err := encode(slices.Clone(header), fn)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// linkMessage returns a kernel message about link #7.
func linkMessage(t testing.TB, flags uint32, fn func(ae *netlink.AttributeEncoder)) []byte {
	t.Helper()
	header, err := (&rtnetlink.LinkMessage{Index: 7, Flags: flags}).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return message(t, header, fn)
}

// The kernel's errno for a missing object depends on the request.
func TestAsNotExist(t *testing.T) {
	for name, tt := range map[string]struct {
		errno   unix.Errno
		request netlink.HeaderType
		is      error
		absent  bool
	}{
		"no device":   {unix.ENODEV, unix.RTM_GETLINK, unix.ENODEV, true},
		"no route":    {unix.ESRCH, unix.RTM_DELROUTE, unix.ESRCH, true},
		"no address":  {unix.EADDRNOTAVAIL, unix.RTM_DELADDR, unix.EADDRNOTAVAIL, true},
		"bad address": {unix.EADDRNOTAVAIL, unix.RTM_NEWADDR, unix.EADDRNOTAVAIL, false},
		"there is":    {unix.EEXIST, unix.RTM_NEWLINK, os.ErrExist, false},
	} {
		err := asNotExist(&nlconn.Error{Errno: tt.errno, Text: "why"}, tt.request)
		if want := tt.errno.Error() + ": why"; !errors.Is(err, tt.is) || errors.Is(err, os.ErrNotExist) != tt.absent || err.Error() != want {
			t.Errorf("%s: got %v, absent %t; want %s, %t", name, err, errors.Is(err, os.ErrNotExist), want, tt.absent)
		}
	}
	if err := asNotExist(nil, unix.RTM_GETLINK); err != nil {
		t.Errorf("no error: got %v", err)
	}
}

// The bytes are those of: bridge vlan add dev #7 vid 5 pvid untagged; … vid 10-20.
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
	if op.req.Header.Type != unix.RTM_SETLINK || DropPortVLANs(7, vlans).req.Header.Type != unix.RTM_DELLINK {
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

// Old kernels ignore the filter of a dump, so rtnl filters the routes itself.
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
		got, _ := netip.AddrFromSlice(nlconn.Attribute(b[unix.SizeofIfAddrmsg:], unix.IFA_BROADCAST))
		if got.String() != want {
			t.Errorf("%s: got %s, want %s", prefix, got, want)
		}
	}
}

// Attributes of hardware, which no link made by a test has.
func TestLinkOfHardware(t *testing.T) {
	b := linkMessage(t, 0, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 9})
		ae.Bytes(unix.IFLA_PERM_ADDRESS, []byte{2, 0, 0, 0, 0, 1})
		ae.String(unix.IFLA_PARENT_DEV_NAME, "0000:3b:00.2")
	})
	var l Link
	if err := l.decode(b); err != nil || l.MAC.String() != "02:00:00:00:00:09" || l.PermMAC.String() != "02:00:00:00:00:01" || l.Device != "0000:3b:00.2" {
		t.Errorf("got %+v, %v", l, err)
	}
}

// Attributes of newer kernels are ignored. Statistics are not requested, since the library rejects
// them if their length is unknown.
func TestLinkOfNewerKernel(t *testing.T) {
	b := linkMessage(t, unix.IFF_UP, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, "eth0")
		ae.Bytes(4000, []byte("new"))
	})
	var l Link
	if err := l.decode(b); err != nil || l.Name != "eth0" || l.Index != 7 || !l.Up {
		t.Errorf("got %+v, %v", l, err)
	}
	if err := l.decode(b[:10]); err == nil {
		t.Error("a cut header is taken")
	}
	for name, m := range map[string]netlink.Message{"all": getLink(0, ""), "by index": getLink(7, ""), "by name": getLink(0, "eth0")} {
		if mask := number(nlconn.Attribute(m.Data[unix.SizeofIfInfomsg:], unix.IFLA_EXT_MASK)); mask&rtextSkipStats == 0 {
			t.Errorf("%s: asked for with statistics", name)
		}
	}
}

// Attributes that Rule does not represent set More, except those that the kernel reports for every
// rule.
func TestRuleMore(t *testing.T) {
	plain := func(ae *netlink.AttributeEncoder) {
		ae.Uint32(unix.FRA_TABLE, 100)
		ae.Uint32(unix.FRA_SUPPRESS_PREFIXLEN, 1<<32-1)
		ae.Uint8(unix.FRA_PROTOCOL, 3)
		ae.Uint32(unix.FRA_FWMARK, 1)
		ae.Uint32(unix.FRA_FWMASK, 1<<32-1)
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
		"nothing":     {message(t, header(0, unix.AF_INET), plain), false},
		"TOS":         {message(t, header(3, 4), plain), true},
		"blackhole":   {message(t, header(7, unix.FR_ACT_BLACKHOLE), plain), true},
		"not":         {message(t, invert, plain), true},
		"protocol":    {message(t, header(0, unix.AF_INET), func(ae *netlink.AttributeEncoder) { ae.Uint8(unix.FRA_IP_PROTO, 6) }), true},
		"suppressing": {message(t, header(0, unix.AF_INET), func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.FRA_SUPPRESS_PREFIXLEN, 0) }), true},
		"newer":       {message(t, header(0, unix.AF_INET), func(ae *netlink.AttributeEncoder) { ae.Uint32(4000, 0) }), true},
	} {
		var r Rule
		if err := r.decode(tt.msg); err != nil || r.More != tt.want {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// FuzzDecode passes any bytes to all decoders: none may panic or hang.
func FuzzDecode(f *testing.F) {
	for _, op := range []Op{
		NewLink(LinkSpec{Name: "a", Peer: &LinkSpec{Name: "b"}, MTU: 1}),
		NewPortVLANs(7, []VLANRange{{From: 5}, {From: 10, To: 20}}),
		NewRule(Rule{Table: 70000, IIF: "lo"}),
		NewRoute(Route{Dst: netip.MustParsePrefix("10.0.0.0/8"), MTU: 1}),
	} {
		f.Add(op.req.Data)
	}
	route, err := (&rtnetlink.RouteMessage{Family: unix.AF_INET, Attributes: rtnetlink.RouteAttributes{
		Multipath: []rtnetlink.NextHop{{Hop: rtnetlink.RTNextHop{IfIndex: 7}}, {Hop: rtnetlink.RTNextHop{IfIndex: 8}}},
	}}).MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(route)
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
