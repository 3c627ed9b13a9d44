package spec

import "context"

// A Verb is an operation of the specification, as in CNI_COMMAND.
type Verb string

// The verbs. GET stands in the drafts of 0.4.0 alone.
const (
	Add        Verb = "ADD"
	Check      Verb = "CHECK"
	Del        Verb = "DEL"
	Get        Verb = "GET"
	GC         Verb = "GC"
	Status     Verb = "STATUS"
	GetVersion Verb = "VERSION"
)

// Verbs are what a plugin implements. A nil Status is healthy, a nil GC has
// nothing to do, a nil Get answers with prevResult or code 3.
type Verbs struct {
	// Since is the oldest version the plugin serves; zero: all versions.
	Since Version

	Add, Get               func(context.Context, *Request) (*Result, error)
	Check, Del, Status, GC func(context.Context, *Request) error
}

// An Invoker runs a verb of a plugin by name, wherever it finds the plugin.
// The result is nil for verbs that have none.
type Invoker interface {
	Invoke(ctx context.Context, plugin string, r *Request) (*Result, error)
}
