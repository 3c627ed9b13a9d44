// Package fault lets tests make the nth kernel call fail.
//
// rtnl, nft, ipam and the like ask before each change, so a test that counts to n and
// fails there goes through every failure an ADD can meet, one after another.
package fault

// Hook is asked before each call that changes something in the kernel or on
// disk; what names the call. An error is returned in the call's place. It is
// nil outside tests.
// It is set before the work begins and by one test at a time; nothing guards it.
var Hook func(what string) error

// Check asks the hook.
// Outside of tests it costs one comparison.
func Check(what string) error {
	if Hook == nil {
		return nil
	}
	return Hook(what)
}
