package spec

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A keyed error is about a place in a JSON document.
type keyed struct {
	text   string
	err    error
	key    string // as ipam.ranges[0][0].subnet; empty: the whole document
	offset int    // where the document is not JSON; -1: it is, see key
}

func (k *keyed) Error() string { return k.text }
func (k *keyed) Unwrap() error { return k.err }

// KeyErrorf is [fmt.Errorf] for an error about the value of a key. It has no code.
func KeyErrorf(key, format string, args ...any) error {
	return AtKey(key, fmt.Errorf(format, args...))
}

// AtKey returns an error about the value of a key, with the text and the code of err. The key may be that of an array
// element, such as ipam.ranges[0][0].subnet; the empty key is the whole document. It is not inlined: that costs 21 kB.
//
//go:noinline
func AtKey(key string, err error) error { return &keyed{err.Error(), err, key, -1} }

// AtKey is the function of that name.
func (e *Error) AtKey(key string) error { return AtKey(key, e) }

// KeyOf returns the key that an error is about, and the error with that key; nil: it has no key.
func KeyOf(err error) (key string, of error) {
	k := located(err)
	if k == nil || k.offset >= 0 {
		return "", nil
	}
	return k.key, k
}

// Invalid returns the error of a plugin about its configuration. Its code is 7; where err names no key, it is about the
// value of otherwise.
func Invalid(err error, otherwise string) error {
	e := Errorf(CodeConfig, "%w", err)
	if located(err) == nil {
		return e.AtKey(otherwise)
	}
	return e
}

// located returns the outermost wrapped error with a place, but prefers one about where the
// document is not JSON; nil: none.
func located(err error) (outermost *keyed) {
	var k *keyed
	for ; errors.As(err, &k); err = k.err {
		if k.offset >= 0 {
			return k
		}
		if outermost == nil {
			outermost = k
		}
	}
	return outermost
}

// ElementKey returns the key of an element of a list.
func ElementKey(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// JoinKeys returns the key of a value in another one; each may be empty.
func JoinKeys(key, inner string) string {
	if key == "" || inner == "" || inner[0] == '[' {
		return key + inner
	}
	return key + "." + inner
}

// Offset returns the offset in a JSON document that an error is about: where the document is not
// JSON, or the value of a key below the key prefix, or of the nearest one that contains it. False:
// the error has neither, or the key is one that the caller of the plugin gave.
func Offset(doc []byte, prefix string, err error) (offset int, found bool) {
	k := located(err)
	switch {
	case k == nil:
		return 0, false
	case k.offset >= 0:
		return k.offset, true
	}
	within := func(key string) string { return JoinKeys(prefix, key) }
	first, _, _ := strings.Cut(k.key, ".")
	fromCaller := AsError(err).Code == CodeEnv || first == "runtimeConfig" || first == "args" || first == "prevResult"
	if _, found = Find(doc, within(first)); fromCaller && !found {
		return 0, false
	}
	n, found := Nearest(doc, within(k.key))
	if !found {
		return 0, false
	}
	return n.Value, true
}

// Place returns the line and the column of the [Offset], see [Position].
func Place(doc []byte, prefix string, err error) (line, column int, found bool) {
	offset, found := Offset(doc, prefix, err)
	if !found {
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
