package dhcp

import "strings"

// longestName is the longest domain name, in characters: RFC 1035 section 2.3.4.
const longestName = 253

// domainName checks a domain name that a server sent; empty: it is invalid. It is written to
// resolv.conf, so it may have only letters, digits, hyphens, underscores and dots.
func domainName(text string) string {
	text = strings.TrimRight(text, "\x00")
	text = strings.TrimSuffix(text, ".")
	if text == "" || len(text) > longestName || strings.HasPrefix(text, ".") || strings.Contains(text, "..") {
		return ""
	}
	for _, c := range []byte(text) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return ""
		}
	}
	return text
}

// domainList reads consecutive names in the form of RFC 1035 section 3.1. Option 119 may have
// compression pointers (section 4.1.4), DHCPv6 has none. It skips invalid names, and stops at a
// malformed one.
func domainList(data []byte) (names []string) {
	for at := 0; at < len(data) && len(names) < longestList; {
		name, next, ok := oneName(data, at)
		if !ok {
			return names
		}
		if name = domainName(name); name != "" {
			names = append(names, name)
		}
		at = next
	}
	return names
}

// oneName reads the name at an offset and returns the offset of the next one. Pointers must point
// backwards, so reading ends.
func oneName(data []byte, at int) (name string, next int, ok bool) {
	var b strings.Builder
	next = -1 // not known yet: the name ends at its first pointer or at its end
	for limit := len(data); at < limit; {
		n := int(data[at])
		switch {
		case n == 0:
			if next < 0 {
				next = at + 1
			}
			return b.String(), next, true
		case n&0xc0 == 0xc0:
			if at+1 >= limit {
				return "", 0, false
			}
			to := n&0x3f<<8 | int(data[at+1])
			if next < 0 {
				next = at + 2
			}
			if to >= at {
				return "", 0, false
			}
			at, limit = to, at
		case n > 63 || at+1+n > limit || b.Len()+n > longestName:
			return "", 0, false
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			// A dot within a label would be read as two labels.
			b.WriteString(strings.ReplaceAll(string(data[at+1:at+1+n]), ".", "\x00"))
			at += 1 + n
		}
	}
	return "", 0, false
}
