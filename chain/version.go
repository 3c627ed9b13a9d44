package chain

import (
	"context"
	"fmt"

	"cnibox/internal/json"
	"cnibox/spec"
)

// Versions asks a plugin for the versions it serves, oldest first. The file is
// empty for one that is built in.
// Errors are those of [Local.Invoke]. A plugin that does not know VERSION is one of
// 0.1.0, and its error says so.
func (l *Local) Versions(ctx context.Context, plugin string) (file string, versions []string, err error) {
	file, verbs, err := l.find(plugin)
	if err != nil {
		return "", nil, err
	}
	if verbs != nil {
		for _, v := range spec.Versions(verbs.Since) {
			versions = append(versions, v.String())
		}
		return "", versions, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	// Old plugins check the variables before they look at the verb.
	call := spec.Call{Verb: spec.GetVersion, NetNS: "dummy", IfName: "dummy", Path: "dummy"}
	a, err := start(ctx, plugin, file, l.environ(call), []byte(`{"cniVersion":"1.1.0"}`))
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return file, nil, err
	}
	var answer struct{ SupportedVersions []string }
	if err := json.Unmarshal(a.stdout, &answer); err != nil {
		return file, nil, a.fail(fmt.Errorf("answer to VERSION %s: %w", excerpt(a.stdout), err))
	}
	return file, answer.SupportedVersions, nil
}
