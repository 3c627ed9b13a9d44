package cniexec

import (
	"context"
	"fmt"
)

// A verb is a command of cni-exec. Its help, the completions and the manual page are made of it.
type verb struct {
	name     string
	operands string         // as the usage line has them
	summary  string         // one line
	text     string         // further text, in lines of at most 80 columns
	examples []example      // two
	command  bool           // takes a command behind "--"
	flags    func(*flagSet) // declares its own; nil: it has none

	// do runs the verb. The exit code counts where there is no error.
	do func(c *call, ctx context.Context, operands []string) (exit int, err error)
}

// An example is a command line and what it does.
type example struct{ line, what string }

// verbs are the commands in the order of the help.
func verbs() []*verb {
	return []*verb{
		addVerb(), checkVerb(), getVerb(), delVerb(), gcVerb(), statusVerb(), versionVerb(),
		runVerb(), enterVerb(), lsVerb(), showVerb(), whoVerb(), treeVerb(), reloadVerb(),
		lintVerb(), rmVerb(), upVerb(), downVerb(), bootVerb(), doctorVerb(), helpVerb(),
	}
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

// attachment is for the verbs of the specification: it reads their operands and makes the
// runner.
func attachment(do func(*call, context.Context) error) func(*call, context.Context, []string) (int, error) {
	return func(c *call, ctx context.Context, operands []string) (int, error) {
		if err := c.operands(operands); err != nil {
			return 0, usage("%s: %w", c.verb, err)
		}
		if err := c.prepare(); err != nil {
			return 0, err
		}
		return exitOK, do(c, ctx)
	}
}

// onAll is a function for all networks or attachments and one for a single one; the flags decide.
func onAll(all, one func(*call, context.Context) error) func(*call, context.Context) error {
	return func(c *call, ctx context.Context) error {
		if c.everyNetwork() {
			return all(c, ctx)
		}
		return one(c, ctx)
	}
}

// A usageError is a mistake in the command line: its exit code is 2.
type usageError struct{ error }

// Unwrap returns what is wrong.
func (u usageError) Unwrap() error { return u.error }

// usage makes a usageError.
func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
