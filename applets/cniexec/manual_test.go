package cniexec

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The manual has each verb with its examples, and each flag.
func TestManual(t *testing.T) {
	m := NewManual()
	terms := m.Flags
	for _, v := range shownVerbs() {
		i := slices.IndexFunc(m.Verbs, func(of ManualVerb) bool { return strings.HasPrefix(of.Usage+" ", v.name+" ") })
		if i < 0 || len(m.Verbs[i].Examples) != len(v.examples) {
			t.Errorf("it does not have %s with its examples", v.name)
			continue
		}
		terms = append(terms, m.Verbs[i].Flags...)
	}
	allFlags(new(flags), noEnv).VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && !slices.ContainsFunc(terms, func(f ManualTerm) bool { return strings.Contains(f.Term+" ", "--"+flag.Name+" ") }) {
			t.Errorf("it does not have --%s", flag.Name)
		}
	})
}
