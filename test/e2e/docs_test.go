package e2e

import (
	"os"
	"strings"
	"testing"
)

// The documents say how to delete each of our tables on the way back to the reference plugins.
func TestDocsDeleteEachTable(t *testing.T) {
	operations, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"inet cnibox", "bridge cnibox"} {
		if !strings.Contains(string(operations), "nft delete table "+table) || !strings.Contains(string(operations), "`"+table+"`") {
			t.Errorf("docs/operations.md does not say how to delete the table %s", table)
		}
	}
}
