package nft

import "github.com/cnibox/cnibox/internal/nlconn"

func text(b []byte, path ...uint16) string { return nlconn.Text(b, path...) }

func num(b []byte, path ...uint16) uint64 { return nlconn.Number(b, path...) }
