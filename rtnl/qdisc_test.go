package rtnl

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The bytes are those that tc(8) 6.1 sends for the commands, without the rate tables of tbf, and
// with the burst in bytes instead of ticks.
func TestTrafficControlMessages(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("SKIPPED: the bytes are those of a little-endian machine")
	}
	const header = "00000000" + "07000000"
	tests := map[string]struct {
		op    Op
		typ   netlink.HeaderType
		flags netlink.HeaderFlags
		want  string
	}{
		"tc qdisc add dev #7 root handle 1: tbf rate 8mbit burst 10000 limit 35000": {
			NewTBF(7, TBF{Rate: 1e6, Burst: 10000, Limit: 35000}), unix.RTM_NEWQDISC, create,
			header + "00000100" + "ffffffff" + "00000000" + "08000100" + "74626600" + "34000280" +
				"28000100" + "0001000000000000" + "40420f00" + "000000000000000000000000" + "b8880000" + "0000000000000000" +
				"08000600" + "10270000",
		},
		"tc qdisc replace dev #7 root handle 1: tbf rate 80gbit burst 1 limit 1": {
			ReplaceTBF(7, TBF{Rate: 1e10, Burst: 1, Limit: 1}), unix.RTM_NEWQDISC, replace,
			header + "00000100" + "ffffffff" + "00000000" + "08000100" + "74626600" + "40000280" +
				"28000100" + "0001000000000000" + "ffffffff" + "000000000000000000000000" + "01000000" + "0000000000000000" +
				"08000600" + "01000000" + "0c000400" + "00e40b5402000000",
		},
		"tc qdisc replace dev #7 parent 1:1 fq_codel memory_limit 65536": {
			NewFQCodel(7, 65536), unix.RTM_NEWQDISC, replace,
			header + "00000000" + "01000100" + "00000000" + "0d000100" + "66715f636f64656c00000000" + "0c000280" + "08000900" + "00000100",
		},
		"tc qdisc add dev #7 ingress": {
			NewIngress(7), unix.RTM_NEWQDISC, create,
			header + "0000ffff" + "f1ffffff" + "00000000" + "0c000100" + "696e677265737300",
		},
		"tc qdisc del dev #7 root": {
			DropRootQdisc(7), unix.RTM_DELQDISC, ack, header + "00000000" + "ffffffff" + "00000000",
		},
		"tc filter add dev #7 ingress protocol all prio 1 u32 match u32 0 0 classid 1:1 action mirred egress redirect dev #9": {
			NewRedirect(7, 9), unix.RTM_NEWTFILTER, create,
			header + "00000000" + "f2ffffff" + "00030100" + "08000100" + "75333200" + "68000280" +
				"08000100" + "01000100" + "38000780" + "34000180" + "0b000100" + "6d69727265640000" + "24000280" + "20000200" +
				"0000000000000000" + "04000000" + "0000000000000000" + "01000000" + "09000000" +
				"24000500" + "01000100" + "000000000000000000000000" + "00000000000000000000000000000000",
		},
		"tc filter del dev #7 ingress protocol all prio 1 u32": {
			DropRedirects(7), unix.RTM_DELTFILTER, ack,
			header + "00000000" + "f2ffffff" + "00030100" + "08000100" + "75333200",
		},
	}
	for name, tt := range tests {
		if tt.op.err != nil {
			t.Errorf("%s: %v", name, tt.op.err)
			continue
		}
		h := tt.op.req.Header
		if got := hex.EncodeToString(tt.op.req.Data); got != tt.want || h.Type != tt.typ || h.Flags != tt.flags {
			t.Errorf("%s: type %d flags %#x\ngot  %s\nwant %s", name, h.Type, h.Flags, got, tt.want)
		}
	}
}

func TestTrafficControlRefuses(t *testing.T) {
	for name, op := range map[string]Op{
		"no rate":  NewTBF(7, TBF{Burst: 1}),
		"no burst": ReplaceTBF(7, TBF{Rate: 1}),
		"no link":  NewIngress(0), "no link to shape": NewTBF(0, TBF{Rate: 1, Burst: 1}),
		"no link to redirect": NewRedirect(0, 1), "no qdisc of no link": DropIngress(0),
	} {
		if op.err == nil {
			t.Errorf("%s: it would be sent", name)
		}
	}
}

// Same ignores the kernel's rounding, and no other difference.
func TestTBFSame(t *testing.T) {
	want := TBF{Rate: 1e6, Burst: 10000, Limit: 35000}
	for name, tt := range map[string]struct {
		want, read TBF
		same       bool
	}{
		"exact":                {want, TBF{Rate: 1e6, Limit: 35000, ticks: 156250}, true},
		"rounded":              {want, TBF{Rate: 1e6, Limit: 35000, ticks: 156249}, true},
		"other burst":          {want, TBF{Rate: 1e6, Limit: 35000, ticks: 156000}, false},
		"other rate":           {want, TBF{Rate: 1e6 + 1, Limit: 35000, ticks: 156250}, false},
		"other limit":          {want, TBF{Rate: 1e6, Limit: 35001, ticks: 156250}, false},
		"of more than 32 bits": {TBF{Rate: 1000, Burst: math.MaxUint32}, TBF{Rate: 1000, ticks: 4294951671}, true},
		"nothing":              {TBF{}, TBF{}, false},
	} {
		if got := tt.want.Same(tt.read); got != tt.same {
			t.Errorf("%s: got %t, ticks %d", name, got, uint32(uint64(tt.want.Burst)*(1e9/nsPerTick)/max(tt.want.Rate, 1)))
		}
	}
}

// FuzzTrafficControl passes any bytes to the decoders.
func FuzzTrafficControl(f *testing.F) {
	f.Add(NewTBF(7, TBF{Rate: 1e10, Burst: 1, Limit: 1}).req.Data)
	f.Add(NewRedirect(7, 9).req.Data)
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, _, err := decodeQdisc(b); err == nil {
			q.TBF.Same(q.TBF)
		}
		decodeRedirect(b)
	})
}
