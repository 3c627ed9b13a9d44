package chained

import (
	"context"

	"cnibox/applets/record"
	"cnibox/spec"
)

// Get is the GET of a plugin that works on the interface of another. It answers with prevResult as
// long as the attachment is there: the plugin has it on record, or finds, by its CHECK, the interface
// as ADD left it. One that was deleted is unknown, with code 3.
func Get(ctx context.Context, r *spec.Request, recorded bool, check func(context.Context, *spec.Request) error) (*spec.Result, error) {
	if r.Prev == nil {
		return nil, spec.Errorf(spec.CodeUnknown, "unknown container %q", r.ContainerID)
	}
	if recorded {
		return r.Prev, nil
	}
	c, err := Open(r, spec.CodeUnknown)
	if err != nil {
		return nil, err
	}
	c.Close()
	dangling := r.CheckIndexes() // no ADD has had such a prevResult
	if err = dangling; err == nil {
		err = check(ctx, r)
	}
	if dangling != nil || spec.AsError(err) != nil && spec.AsError(err).Code == spec.CodeCheck {
		return nil, spec.Errorf(spec.CodeUnknown, "no attachment %s is known", r.Attachment).WithDetails("%v", err)
	}
	return r.Prev, err
}

// Recorded reports whether a record of the attachment can be read.
func Recorded(r *spec.Request, usual record.Dir) bool {
	return ReadRecord[record.Owner](record.Configured(r, usual), r.Attachment) != nil
}
