package rtnl_test

import (
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
)

func ptr[T any](v T) *T { return &v }

func TestKernelVethInOneSend(t *testing.T) {
	host, cont := kerneltest.NS(t), kerneltest.NS(t)
	h, c := kerneltest.Dial(t, host), kerneltest.Dial(t, cont)
	br, err := h.CreateLink(rtnl.LinkSpec{Name: "cni0", Kind: rtnl.Bridge{}, Up: true})
	if err != nil {
		t.Fatal(err)
	}
	port, err := h.CreateLink(rtnl.LinkSpec{
		Name: "port0", Master: br.Index, Up: true, MTU: 1400, Alias: "who owns it", Hairpin: ptr(true),
		TxQLen: ptr(0),
		Peer: &rtnl.LinkSpec{Name: "eth0", NS: cont, MTU: 1400},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", port)
	eth, err := c.Link("eth0")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", eth)
}
