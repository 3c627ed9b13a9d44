package applets

import (
	"encoding/json"

	"cnibox/spec"
)

func encodeError(err error, v spec.Version) []byte {
	e, ok := err.(*spec.Error)
	if !ok {
		e = spec.Errorf(spec.CodeInternal, "%w", err)
	}
	b, _ := json.MarshalIndent(struct {
		Version string `json:"cniVersion"`
		*spec.Error
	}{v.String(), e}, "", "    ")
	return b
}

func versionAnswer(conf []byte, since spec.Version) []byte {
	b, _ := json.Marshal(map[string]any{"cniVersion": spec.Newest.String(), "supportedVersions": spec.Versions(since)})
	return append(b, '\n')
}
