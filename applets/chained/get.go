package chained

import (
	"context"

	"github.com/cnibox/cnibox/spec"
)

// get returns prevResult while the attachment exists: it has a record, or CHECK finds the interface
// as ADD left it. A deleted attachment is unknown, with code 3.
func (p *Plugin) get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	if r.Prev == nil {
		return nil, spec.Errorf(spec.CodeUnknown, "unknown container %q", r.ContainerID)
	}
	d, op := p.readAnyway(ctx, r)
	if known, err := d.Known(op); err != nil || known {
		return r.Prev, err
	}
	if err := op.OpenLink(spec.CodeUnknown); err != nil {
		return nil, err
	}
	dangling := r.CheckIndexes() // prevResult of an ADD never has such an index
	err := dangling
	if err == nil {
		err = p.check(ctx, r)
	}
	if dangling != nil || spec.AsError(err) != nil && spec.AsError(err).Code == spec.CodeCheck {
		return nil, spec.Errorf(spec.CodeUnknown, "no attachment %s is known", r.Attachment).WithDetails("%v", err)
	}
	return r.Prev, err
}
