package spec

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// A KeyError is an error about the value of a key, whose place in a file it lets a caller find.
// Its text, which has the key where that helps, is that of Err.
type KeyError struct {
	Key string // as ipam.ranges[0][0].subnet; empty: the whole document
	Err error
}

func (e *KeyError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the key.
func (e *KeyError) Unwrap() error { return e.Err }

// KeyErrorf is [fmt.Errorf] for an error about the value of a key.
func KeyErrorf(key, format string, args ...any) error {
	return &KeyError{key, fmt.Errorf(format, args...)}
}

// AtKey returns a copy of the error that is about the value of a key.
func (e *Error) AtKey(key string) *Error {
	out := *e
	out.Err = &KeyError{key, cmp.Or(e.Err, errors.New(e.Msg))}
	return &out
}

// Place returns the line and the column, counted from 1 and in bytes, of what an error is about
// in a JSON document: of a [SyntaxError], or of the value of the key of a
// [KeyError], which is looked for below the key prefix. False: it is about neither, or the
// document does not have the key.
func Place(doc []byte, prefix string, err error) (line, column int, found bool) {
	offset := 0
	var syntax *SyntaxError
	var key *KeyError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &key):
		n, ok := Find(doc, strings.Trim(prefix+"."+key.Key, "."))
		if !ok {
			return 0, 0, false
		}
		offset = n.Value
	default:
		return 0, 0, false
	}
	line, column = Position(doc, offset)
	return line, column, true
}

// Position returns the line and the column of an offset in a document, counted from 1 and in bytes.
func Position(doc []byte, offset int) (line, column int) {
	before := doc[:min(max(offset, 0), len(doc))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}
