package e2e

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeLeavesNothing has the README delete each of our tables on the way back to the
// reference plugins.
func TestReadmeLeavesNothing(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"inet cnibox", "bridge cnibox"} {
		if !strings.Contains(string(readme), "nft delete table "+table) || !strings.Contains(string(readme), "`"+table+"`") {
			t.Errorf("the README does not say how to delete the table %s", table)
		}
	}
}
