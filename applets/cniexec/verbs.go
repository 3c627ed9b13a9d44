package cniexec

import (
	"context"
	"fmt"
	"slices"
)

// A verb is a command of cni-exec: the source of its help, the completions and the manual page.
type verb struct {
	name     string
	group    string    // of the first screen; empty: it is not there
	operands string    // as in the usage line
	summary  string    // one line
	text     string    // further text, in lines of at most 80 columns
	examples []example // two
	command  bool      // takes a command after "--", or after so many operands:
	before   int
	instead  string // of an earlier release, which works but has no help: the words to write in its place

	new func(*call) action
}

// An action is one call of a verb, with the values of its flags, which no other verb uses.
type action interface {
	flags(*flagSet) // declares the verb's own flags
	// do runs the verb. The exit code is used if there is no error.
	do(ctx context.Context, operands []string) (exit int, err error)
}

// An example is a command line and what it does.
type example struct{ line, what string }

// verbs are the commands in the order of the help.
func verbs() []*verb {
	return []*verb{
		addVerb(), delVerb(), checkVerb(), getVerb(), gcVerb(), statusVerb(), versionVerb(),
		runVerb(), enterVerb(), publishVerb(), upVerb(), downVerb(), hookVerb(),
		lsVerb(), showVerb(), treeVerb(), traceVerb(),
		doctorVerb(), lintVerb(), reloadVerb(), rmVerb(),
		helpVerb(),
		bootVerb(), metricsVerb(), unpublishVerb(), whoVerb(), // of an earlier release
	}
}

// shownVerbs are the verbs without those of an earlier release.
func shownVerbs() []*verb {
	return slices.DeleteFunc(verbs(), func(v *verb) bool { return v.instead != "" })
}

// findVerb returns the verb of a name; nil: it does not exist.
func findVerb(name string) *verb {
	for _, v := range verbs() {
		if v.name == name {
			return v
		}
	}
	return nil
}

// A usageError is a mistake in the command line: its exit code is 2.
type usageError struct{ error }

// Unwrap returns what is wrong.
func (u usageError) Unwrap() error { return u.error }

// tooMany returns an error for operands that a verb does not take.
func (o *options) tooMany(operands []string, most int) error {
	if len(operands) <= most {
		return nil
	}
	return usage("%s: unexpected argument %q", o.verb, operands[most])
}

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
