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
)

func TestNextMessage(t *testing.T) {
	two := append(kernelMessage(1, 20, 2, []byte("12345")), kernelMessage(1, 21, 0, nil)...)
	m, rest, ok := nextMessage(two)
	if !ok || m.typ != 20 || m.flags != 2 || m.seq != 1 || string(m.data) != "12345" {
		t.Fatalf("first: got %+v, %t", m, ok)
	}
	if m, rest, ok = nextMessage(rest); !ok || m.typ != 21 || len(m.data) != 0 || len(rest) != 0 {
		t.Errorf("second: got %+v, %d bytes left, %t", m, len(rest), ok)
	}
	long, short := kernelMessage(1, 20, 0, nil), kernelMessage(1, 20, 0, nil)
	binary.NativeEndian.PutUint32(long, 17)
	binary.NativeEndian.PutUint32(short, 15)
	for name, b := range map[string][]byte{"empty": nil, "cut": two[:15], "too long": long, "too short": short} {
		if _, _, ok := nextMessage(b); ok {
			t.Errorf("%s: taken for a message", name)
		}
	}
}

func TestKernelVerdict(t *testing.T) {
	header := make([]byte, unix.SizeofNlMsghdr)
	binary.NativeEndian.PutUint32(header, 24) // the request with 8 bytes of payload
	text := append([]byte{8, 0, unix.NLMSGERR_ATTR_MSG, 0}, "why\x00"...)
	capped := append(append(verdict(unix.EEXIST), header...), text...)
	whole := append(append(append(verdict(unix.EEXIST), header...), make([]byte, 8)...), text...)
	tests := map[string]struct {
		typ, flags, request uint16
		data                []byte
		text                string
		is                  error
	}{
		"acknowledged":  {unix.NLMSG_ERROR, 0, unix.RTM_NEWLINK, append(verdict(0), header...), "", nil},
		"end of a dump": {unix.NLMSG_DONE, unix.NLM_F_MULTI, unix.RTM_GETLINK, nil, "", nil},
		"bare": {
			unix.NLMSG_ERROR, 0, unix.RTM_NEWLINK, append(verdict(unix.EEXIST), header...), "file exists", os.ErrExist,
		},
		"explained, capped": {
			unix.NLMSG_ERROR, unix.NLM_F_CAPPED | unix.NLM_F_ACK_TLVS, unix.RTM_NEWLINK, capped, "file exists: why", os.ErrExist,
		},
		"explained": {
			unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, unix.RTM_NEWLINK, whole, "file exists: why", os.ErrExist,
		},
		"no device": {unix.NLMSG_ERROR, 0, unix.RTM_GETLINK, verdict(unix.ENODEV), "no such device", os.ErrNotExist},
		"no route":  {unix.NLMSG_ERROR, 0, unix.RTM_DELROUTE, verdict(unix.ESRCH), "no such process", os.ErrNotExist},
		"no address": {
			unix.NLMSG_ERROR, 0, unix.RTM_DELADDR, verdict(unix.EADDRNOTAVAIL), "cannot assign requested address", os.ErrNotExist,
		},
		"bad address": {
			unix.NLMSG_ERROR, 0, unix.RTM_NEWADDR, verdict(unix.EADDRNOTAVAIL), "cannot assign requested address", unix.EADDRNOTAVAIL,
		},
		"dump refused": {unix.NLMSG_DONE, unix.NLM_F_MULTI, unix.RTM_GETLINK, verdict(unix.EINVAL), "invalid argument", unix.EINVAL},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := kernelVerdict(message{typ: tt.typ, flags: tt.flags, data: tt.data}, tt.request)
			if tt.is == nil {
				if err != nil {
					t.Errorf("got %v, want none", err)
				}
				return
			}
			if !errors.Is(err, tt.is) || err.Error() != tt.text {
				t.Errorf("got %v, want %s", err, tt.text)
			}
		})
	}
	err := kernelVerdict(message{typ: unix.NLMSG_ERROR, data: verdict(unix.EADDRNOTAVAIL)}, unix.RTM_NEWADDR)
	if errors.Is(err, os.ErrNotExist) {
		t.Error("an address that cannot be given is taken for one that is not there")
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
	got := append([]byte(nil), op.reqs[0].data...)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && hex.EncodeToString(got) != want {
		t.Errorf("got  %x\nwant %s", got, want)
	}
	if op.reqs[0].typ != unix.RTM_SETLINK || DropPortVLANs(7, vlans).reqs[0].typ != unix.RTM_DELLINK {
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
		"10.1.2.2/30": "10.1.2.3", "10.1.2.3/31": "<nil>", "10.1.2.3/32": "<nil>", "2001:db8::1/64": "<nil>",
	} {
		m, err := Addr{Prefix: netip.MustParsePrefix(prefix)}.message(1)
		if err != nil || m.Attributes.Broadcast.String() != want {
			t.Errorf("%s: got %s, %v; want %s", prefix, m.Attributes.Broadcast, err, want)
		}
	}
}

// A link of a kernel newer than all we know: the attributes at the end are
// unknown, the statistics longer than today's.
func TestLinkOfNewerKernel(t *testing.T) {
	b := linkHeader(0, 7, unix.IFF_UP, 0)
	attr := func(typ uint16, data []byte) {
		b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = append(append(b, data...), make([]byte, align(len(data))-len(data))...)
	}
	attr(unix.IFLA_IFNAME, []byte("eth0\x00"))
	attr(unix.IFLA_STATS64, make([]byte, 400))
	attr(4000, []byte("new"))
	var l Link
	if err := l.decode(b); err != nil || l.Name != "eth0" || l.Index != 7 || !l.Up {
		t.Errorf("got %+v, %v", l, err)
	}
	if err := l.decode(b[:10]); err == nil {
		t.Error("a cut header is taken")
	}
}

// FuzzDecode gives all decoders bytes that no kernel sends: none may panic or hang.
func FuzzDecode(f *testing.F) {
	for _, op := range []Op{
		NewLink(LinkSpec{Name: "a", Peer: &LinkSpec{Name: "b"}, Alias: "x", MTU: 1}),
		NewPortVLANs(7, []VLANRange{{From: 5}, {From: 10, To: 20}}),
		NewRule(Rule{Table: 70000, IIF: "lo"}),
	} {
		for _, r := range op.reqs {
			f.Add(r.append(nil, 1))
		}
	}
	f.Add(kernelMessage(1, unix.NLMSG_ERROR, unix.NLM_F_ACK_TLVS, make([]byte, 40)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for m, rest, ok := nextMessage(b); ok; m, rest, ok = nextMessage(rest) {
			_ = kernelVerdict(m, m.typ)
			var l Link
			_ = l.decode(m.data)
			var a Addr
			_, _ = a.decode(m.data)
			_, _ = decodeRoute(m.data)
			var r Rule
			_ = r.decode(m.data)
			_, _, _ = decodePortVLANs(m.data)
		}
	})
}
