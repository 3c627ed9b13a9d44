package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/spec"
)

// Versions returns the versions that a plugin supports, in its order, and its file, which is empty for a
// built-in one. Errors are those of [Invoker.Invoke]. A plugin without VERSION supports 0.1.0.
func (l *Invoker) Versions(ctx context.Context, plugin string) (file string, versions []string, err error) {
	file, builtIn, err := l.find(plugin)
	if err != nil {
		return "", nil, err
	}
	if builtIn != nil {
		for _, v := range spec.Versions(builtIn.Since) {
			versions = append(versions, v.String())
		}
		return "", versions, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout())
	defer cancel()
	// Old plugins check the variables before they look at the verb. The values are libcni's.
	call := spec.Call{Verb: spec.GetVersion, NetNS: "dummy", IfName: "dummy", Path: "dummy"}
	a, err := start(ctx, plugin, file, l.environ(call), []byte(`{"cniVersion":"1.1.0"}`))
	if err != nil {
		return file, nil, err
	}
	if err := a.check(); err != nil {
		// The error of the reference's oldest plugins for a verb that they do not know.
		var reported *spec.Error
		if errors.As(err, &reported) && reported.Msg == "unknown CNI_COMMAND: VERSION" {
			return file, []string{"0.1.0"}, nil
		}
		return file, nil, err
	}
	versions, err = a.versions()
	return file, versions, err
}

// versions reads the answer to VERSION. One of 0.2.0 may omit the list; then the plugin supports 0.1.0
// as well.
func (a *answer) versions() ([]string, error) {
	var doc struct {
		CNIVersion        string
		SupportedVersions []string
	}
	err := json.Unmarshal(a.stdout, &doc)
	switch {
	case err != nil:
		err = spec.Explain(a.stdout, &doc, err)
	case doc.CNIVersion == "":
		err = errors.New(`it has no "cniVersion"`)
	case len(doc.SupportedVersions) > 0:
		return doc.SupportedVersions, nil
	case doc.CNIVersion == "0.2.0":
		return []string{"0.1.0", "0.2.0"}, nil
	default:
		err = errors.New(`it has no "supportedVersions"`)
	}
	return nil, a.fail(fmt.Errorf("answer to VERSION %s: %w", excerpt(a.stdout), err))
}
