package subnet

import (
	"net/netip"
	"testing"
)

func prefixes(list ...string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func TestChoose(t *testing.T) {
	tests := map[string]struct {
		used []netip.Prefix
		want string // "": an error
	}{
		"free host":            {prefixes("0.0.0.0/0", "::/0", "192.168.1.0/24"), "10.208.0.0/24"},
		"halves of a VPN":      {prefixes("0.0.0.0/1", "128.0.0.0/1"), "10.208.0.0/24"},
		"first is taken":       {prefixes("10.208.0.77/32"), "10.208.1.0/24"},
		"a block is taken":     {prefixes("10.208.0.0/16"), "10.209.0.0/24"},
		"all of 10 is taken":   {prefixes("10.0.0.0/8"), "172.24.0.0/24"},
		"all but one is taken": {prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"), "100.64.0.0/24"},
		"all is taken":         {prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			four, err := IPv4(tt.used)
			if err != nil {
				if tt.want != "" {
					t.Error(err)
				}
				return
			}
			if four.String() != tt.want {
				t.Errorf("got %s, want %s", four, tt.want)
			}
			six := IPv6(tt.used)
			if a := six.Addr().As16(); a[0] != 0xfd || six.Bits() != 64 || six != six.Masked() {
				t.Errorf("got %s", six)
			}
		})
	}
}
