package nft

import (
	"fmt"
	"strings"
)

// CheckChainName rejects chain names that iptables does not accept, or that nft cannot read without
// quotes, which it does not accept for chain names. The error completes a sentence that begins with
// the name.
func CheckChainName(name string) error {
	const longest = 28 // XT_EXTENSION_MAXNAMELEN without the zero byte, linux/netfilter/x_tables.h
	letters := "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	if name == "" || len(name) > longest || !strings.ContainsRune(letters, rune(name[0])) || strings.Trim(name, letters+"0123456789-") != "" {
		return fmt.Errorf(`the name of a chain has up to %d letters, digits, "-" and "_", a letter or "_" first`, longest)
	}
	return nil
}
