// Package fault lets tests make the nth change of the kernel or the disk fail, or kill the
// process there, so that they can go through every failure that an ADD can meet; and [Count] what a verb
// does, so that they need not measure time.
//
// Each change goes through one of three functions: [Change], which rtnl and netns use, nft's commit and
// [github.com/cnibox/cnibox/internal/disk.Change].
package fault

import "fmt"

// Hook is called before each change; what names it, such as "link add br0 type bridge". If it returns
// an error, the change is not made and fails with this error. It is nil outside tests.
//
// A test sets it before the code under test runs, and no other test may run meanwhile: access is not
// synchronized.
var Hook func(what string) error

// Enter is called before each setns(2); if it returns an error, that fails with it. It is nil outside tests, and
// set as [Hook] is.
var Enter func() error

// Check calls the hook, and counts the change. Outside tests it costs two comparisons.
func Check(what string) error {
	Done(Changes, 1)
	if Hook == nil {
		return nil
	}
	return Hook(what)
}

// Change runs do, which makes a change in the kernel or adds it to the next batch. what, in the syntax
// of ip(8), begins the error.
func Change(what string, do func() error) error {
	err := Check(what)
	if err == nil {
		err = do()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
