package mac

import (
	"bytes"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
)

// sameAsNet compares Parse and String with package net's, but for the 8 octets
// that only the latter takes.
func sameAsNet(t *testing.T, s string) {
	t.Helper()
	got, err := Parse(s)
	want, wantErr := net.ParseMAC(s)
	if len(want) == 8 {
		want, wantErr = nil, &net.AddrError{Err: "invalid MAC address", Addr: s}
	}
	if !bytes.Equal(got, want) || (err == nil) != (wantErr == nil) || got.String() != want.String() {
		t.Errorf("%q: got %s and %v, want %s and %v", s, got, err, want, wantErr)
	}
	// Without an address package net leaves out the word "address" too.
	if err != nil && wantErr != nil && s != "" && err.Error() != wantErr.Error() {
		t.Errorf("%q: got %q, want %q", s, err, wantErr)
	}
}

// long is the InfiniBand address of package net's own documentation.
const long = "00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"

var table = []string{
	"", "0", "::", "02:00:5e:10:00", "02:00:5e:10:00:0", "02:00:5e:10:00:1", "02:00:5e:10:00:01", "02:00:5E:10:00:aF",
	"02-00-5e-10-00-01", "0200.5e10.0001", "02005e100001", "02005e10000", "02005e1000011", "02:00:5e:10:00:01:", ":02:00:5e:10:00:01",
	"02:00-5e:10:00:01", "02:00:5e:10:00.01", "02.00.5e.10.00.01", "0200:5e10:0001", "0200-5e10-0001", "0200.5e10:0001", "0200.5e10.0001.",
	"0200.5e10.00.01", "0200.5e1.00001", "02:005e:10:00:01", "020:05:e1:00:00:1", "02:00:5e:10:00:0g", "+2:00:5e:10:00:01", "0x:00:5e:10:00:01",
	" 02:00:5e:10:00:01", "02:00:5e:10:00:01 ", "02:00:5e:10:00:01\x00", "02:00:5e:10:00:\xff1", "02:00:5e:10:00:0é", "0_:00:5e:10:00:01",
	"02:00:5e:10:00:00:01", "02:00:5e:10:00:00:00:01", "0200.5e10.0000.0001", "02005e1000000001", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff",
	long, strings.ToUpper(long), long + ":01", long[3:], strings.ReplaceAll(long, ":", "-"), strings.ReplaceAll(long, ":", ""),
	"0000.0000.fe80.0000.0000.0000.0200.5e10.0000.0001", "0000.0000.fe80.0000.0000.0000.0200.5e10.0000.001", strings.Repeat("0", 10000),
}

func TestParse(t *testing.T) {
	for _, s := range table {
		sameAsNet(t, s)
	}
	for _, s := range []string{table[7], table[8], table[9], table[10], long} {
		if _, err := Parse(s); err != nil {
			t.Error(err)
		}
	}
}

// TestRandom writes random addresses in every way there is, and then with one
// byte changed, dropped or doubled.
func TestRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		b := make([]byte, []int{5, 6, 7, 8, 19, 20, 21}[random.IntN(7)])
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		s := written(b, random)
		sameAsNet(t, s)
		i := random.IntN(len(s))
		sameAsNet(t, s[:i]+string("0fFgG:-. \x00"[random.IntN(10)])+s[i+1:])
		sameAsNet(t, s[:i]+s[i+1:])
		sameAsNet(t, s[:i]+s[i:i+1]+s[i:])
	}
}

// written is the octets with one of the separators, digits small or big.
func written(b []byte, random *rand.Rand) string {
	s := Addr(b).String()
	switch random.IntN(4) {
	case 1:
		s = strings.ReplaceAll(s, ":", "-")
	case 2:
		s = strings.ReplaceAll(s, ":", "")
	case 3:
		var fours strings.Builder
		for i, pair := range strings.Split(s, ":") {
			if i > 0 && i%2 == 0 {
				fours.WriteByte('.')
			}
			fours.WriteString(pair)
		}
		s = fours.String()
	}
	if random.IntN(2) == 1 {
		s = strings.ToUpper(s)
	}
	return s
}

func TestString(t *testing.T) {
	for n := range 22 {
		b := bytes.Repeat([]byte{0xa0 | byte(n&0xf)}, n)
		if got, want := Addr(b).String(), net.HardwareAddr(b).String(); got != want {
			t.Errorf("%d octets: got %q, want %q", n, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range table {
		f.Add(s)
	}
	f.Fuzz(sameAsNet)
}
