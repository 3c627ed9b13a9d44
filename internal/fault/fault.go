// Package fault lets tests make the nth change of the kernel or the disk fail, or kill the
// process there, so that they can go through every failure that an ADD can meet.
//
// Each change goes through one of three functions, which call [Check]: rtnl's change, nft's
// commit and [cnibox/internal/disk.Change].
package fault

// Hook is called before each change; what names it, as "link add br0 type bridge". An error
// that it returns is the change's, which is not made. It is nil outside tests.
//
// A test sets it before what it tests begins, and no other test may run meanwhile: nothing
// guards it.
var Hook func(what string) error

// Check calls the hook. Outside tests it costs one comparison.
func Check(what string) error {
	if Hook == nil {
		return nil
	}
	return Hook(what)
}
