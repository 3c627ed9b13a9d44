package tty

import (
	"fmt"
	"strings"
)

// Plural returns "1 link", "2 links" and so on.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Several joins the first five of a list, and counts the others.
func Several(list []string) string {
	const most = 5
	if len(list) > most {
		return strings.Join(list[:most], ", ") + fmt.Sprintf(", and %d more", len(list)-most)
	}
	return strings.Join(list, ", ")
}
