// Package spell finds the name that a misspelled one was probably meant to be.
package spell

import "strings"

// Nearest returns the most similar of the names; empty: none is similar. A name is similar if it begins
// with the misspelled one, of four letters at least, or differs by at most two letters and at most a
// third of them.
func Nearest(name string, names []string) (near string) {
	least := 1 + min(2, len(name)/3)
	for _, other := range names {
		if len(name) > 3 && len(other) > len(name) && strings.EqualFold(other[:len(name)], name) {
			return other
		}
		if max(len(name), len(other))-min(len(name), len(other)) >= least {
			continue // the distance is at least the difference in length
		}
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d < least {
			near, least = other, d
		}
	}
	return near
}

// distance is the least number of letters to insert, delete, replace or exchange with the next one.
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
