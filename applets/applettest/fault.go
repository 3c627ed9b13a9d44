package applettest

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
)

// EachFault calls add until none of its changes fails. Call k returns an error for change k,
// counting only those whose text begins with prefix; then failed inspects the result. The last call
// must succeed. EachFault returns the number of changes.
func EachFault(t *testing.T, prefix string, add func() error, failed func(change string, err error)) int {
	t.Helper()
	defer func() { fault.Hook = nil }()
	for k := 1; ; k++ {
		changes, change := 0, ""
		var mu sync.Mutex // DEL makes some changes at once
		fault.Hook = func(what string) error {
			if !strings.HasPrefix(what, prefix) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if changes++; changes != k {
				return nil
			}
			change = what
			return errors.New("made to fail")
		}
		err := add()
		fault.Hook = nil
		if changes < k {
			if err != nil {
				t.Fatalf("without a fault: %v", err)
			}
			return changes
		}
		failed(change, err)
	}
}
