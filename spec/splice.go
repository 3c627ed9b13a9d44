package spec

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Splice returns the JSON object without the members named in set and remove,
// in any case of letters and however often they stand there, and with those of
// set at the end. All other members stay byte for byte: large integers,
// escapes, duplicate keys and the order.
//
// The error says that obj is no object, or which value of set is no JSON.
//
// It is how a configuration is handed on: specification 1.0.0 has the runtime keep
// what it does not know.
func Splice(obj []byte, set []Member, remove ...string) ([]byte, error) {
	ms, err := Members(obj)
	if err != nil {
		return nil, err
	}
	// A full slice, so that append does not write into the caller's.
	keys := remove[:len(remove):len(remove)]
	size := len(obj) + 2
	for _, m := range set {
		if m.Name == "" {
			return nil, errors.New("a member without a key")
		}
		if !json.Valid(m.Value) {
			return nil, fmt.Errorf("the value of %q is not JSON", m.Name)
		}
		keys = append(keys, m.Name)
		size += len(m.Name) + len(m.Value) + 6
	}
	out := make([]byte, 1, size)
	out[0] = '{'
	for _, m := range ms {
		if index(keys, m.Name) < 0 {
			out = append(comma(out), m.text...)
		}
	}
	for _, m := range set {
		out = append(comma(out), quote(m.Name)...)
		out = append(out, ':')
		out = append(out, m.Value...)
	}
	return append(out, '}'), nil
}

// comma separates what follows from a member before it.
// out ends in a bracket only where nothing has been written into it yet: values end
// in a closing one.
func comma(out []byte) []byte {
	if out[len(out)-1] == '{' || out[len(out)-1] == '[' {
		return out
	}
	return append(out, ',')
}

// quote writes a JSON string, with <, > and & escaped as the reference does.
// Bytes that are not UTF-8 become U+FFFD.
func quote(s string) []byte {
	b, _ := json.Marshal(s) // strings cannot fail
	return b
}
