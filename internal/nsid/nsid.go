// Package nsid is internal/netns.
package nsid

import "cnibox/internal/netns"

func OnDiscardedThread(fn func() error) error { return netns.OnDiscardedThread(fn) }
