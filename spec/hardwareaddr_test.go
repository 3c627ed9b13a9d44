package spec

import (
	"strings"
	"testing"
)

// Addresses of Ethernet and InfiniBand are parsed in every notation of package net, an EUI-64 in
// none.
func TestHardwareAddrNotations(t *testing.T) {
	const ethernet, infiniband = "02:00:5e:10:00:01", "00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01"
	tests := map[string]string{
		ethernet: ethernet, "02:00:5E:10:00:aF": "02:00:5e:10:00:af", "02-00-5e-10-00-01": ethernet, "0200.5e10.0001": ethernet, "02005e100001": ethernet,
		"00:00:00:00:00:00": "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff": "ff:ff:ff:ff:ff:ff",
		infiniband: infiniband, strings.ToUpper(infiniband): infiniband, strings.ReplaceAll(infiniband, ":", "-"): infiniband,
		"0000.0000.fe80.0000.0000.0000.0200.5e10.0000.0001": infiniband,

		"02:00:5e:10:00:00:00:01": "", "02-00-5e-10-00-00-00-01": "", "0200.5e10.0000.0001": "", // EUI-64
		"": "", "::": "", "02:00:5e:10:00": "", "02:00:5e:10:00:1": "", "02:00:5e:10:00:01:": "", ":02:00:5e:10:00:01": "",
		"02:00-5e:10:00:01": "", "02.00.5e.10.00.01": "", "0200:5e10:0001": "", "02:00:5e:10:00:0g": "", "+2:00:5e:10:00:01": "",
		" 02:00:5e:10:00:01": "", "02:00:5e:10:00:01 ": "", "02:00:5e:10:00:01\x00": "", "02:00:5e:10:00:0é": "",
		infiniband + ":01": "", infiniband[3:]: "",
	}
	for text, want := range tests {
		addr, err := HardwareAddr(text)
		if addr.String() != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %s, %v, want %q", text, addr, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "invalid MAC address") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A result may have addresses of all types of links, also an EUI-64 with colons.
func TestResultMACOfAnyLink(t *testing.T) {
	for text, ok := range map[string]bool{
		"02:00:00:00:00:01": true, "02-00-00-00-00-01": true, "0a:00:00:01": true, "02:00:5e:10:00:00:00:01": true,
		"02-00-5e-10-00-00-00-01": false, "0200.5e10.0000.0001": false, "02:00:00:00:00": false, "x": false,
	} {
		_, err := NewRequest(Call{Verb: Check, ContainerID: "c1", NetNS: "/x", IfName: "eth0"},
			[]byte(`{"cniVersion":"1.1.0","name":"n","type":"t","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"`+text+`"}]}}`))
		if (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
