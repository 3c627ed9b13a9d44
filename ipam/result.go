package ipam

import "strings"

// SplitWords splits a list at its commas and omits surrounding blanks and empty words.
func SplitWords(list string) (words []string) {
	for word := range strings.SplitSeq(list, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}
