package main

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// The query is dig's for name.example, without the type.
func TestAnswer(t *testing.T) {
	query := func(kind string) []byte {
		b, err := hex.DecodeString("beef01200001000000000000" + "046e616d65076578616d706c6500" + kind + "0001")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	got := answer(query("0001"))
	if !bytes.HasSuffix(got, nameAddr.AsSlice()) || hex.EncodeToString(got[:12]) != "beef81800001000100000000" {
		t.Errorf("A: % x", got)
	}
	if got := answer(query("001c")); len(got) != len(query("001c")) || got[7] != 0 {
		t.Errorf("AAAA: % x", got)
	}
	for _, n := range []int{0, 5, 12, 20, 29} {
		if got := answer(query("0001")[:n]); got != nil {
			t.Errorf("%d bytes of a query: % x", n, got)
		}
	}
}

func TestImage(t *testing.T) {
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("SKIPPED: ", err)
	}
	var b bytes.Buffer
	if err := writeImage(&b); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	for _, want := range []string{"manifest.json", "config.json", "layer.tar"} {
		if !strings.Contains(strings.Join(names, " "), want) {
			t.Errorf("no %s among %q", want, names)
		}
	}
}
