package cniexec

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The manual page has each verb, and each flag.
func TestManPage(t *testing.T) {
	page := strings.ReplaceAll(Applet.ManPage(nil), `\-`, "-")
	for _, v := range verbs() {
		if !strings.Contains(page, "\n.TP\n.B "+v.name) || !strings.Contains(page, "\n"+v.examples[0].line+"\n") {
			t.Errorf("it does not have %s with its examples", v.name)
		}
	}
	allFlags(new(flags), noEnv).VisitAll(func(flag *pflag.Flag) {
		if !strings.Contains(page, "--"+flag.Name) {
			t.Errorf("it does not have --%s", flag.Name)
		}
	})
}
