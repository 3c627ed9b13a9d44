// Package fault lets tests make the nth kernel call fail.
package fault

// Hook is asked before each call that changes something in the kernel or on
// disk; what names the call. An error is returned in the call's place. It is
// nil outside tests.
var Hook func(what string) error

// Check asks the hook.
func Check(what string) error {
	if Hook == nil {
		return nil
	}
	return Hook(what)
}
