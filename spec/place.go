package spec

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// A place is the part of a JSON document that an error is about.
type place struct {
	key    string // as ipam.ranges[0][0].subnet; empty: the whole document
	offset int    // where the document is not JSON; -1: it is, see key
}

// KeyErrorf is [fmt.Errorf] for an error about the value of a key. Its code is that of the outer
// error.
func KeyErrorf(key, format string, args ...any) error {
	return Errorf(0, format, args...).AtKey(key)
}

// AtKey returns a copy of the error, about the value of a key, which may be an array element, such
// as ipam.ranges[0][0].subnet. The empty key is the whole document.
func (e *Error) AtKey(key string) *Error {
	out := *e
	out.at = &place{key, -1}
	return &out
}

// AtKey returns an error about the value of a key, with the text and the code of err.
func AtKey(key string, err error) error { return unwrapped(err).AtKey(key) }

// KeyOf returns the key that an error is about, and the error with that key; nil: it has no key.
func KeyOf(err error) (key string, keyed *Error) {
	if keyed = located(err); keyed == nil || keyed.at.offset >= 0 {
		return "", nil
	}
	return keyed.at.key, keyed
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
// document is not JSON.
func located(err error) (keyed *Error) {
	var e *Error
	for ; errors.As(err, &e); err = e.Err {
		switch {
		case e.at == nil:
		case e.at.offset >= 0:
			return e
		case keyed == nil:
			keyed = e
		}
	}
	return keyed
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
	keyed := located(err)
	switch {
	case keyed == nil:
		return 0, false
	case keyed.at.offset >= 0:
		return keyed.at.offset, true
	}
	within := func(key string) string { return JoinKeys(prefix, key) }
	first, _, _ := strings.Cut(keyed.at.key, ".")
	fromCaller := AsError(err).Code == CodeEnv || first == "runtimeConfig" || first == "args" || first == "prevResult"
	if _, found = Find(doc, within(first)); fromCaller && !found {
		return 0, false
	}
	n, found := Nearest(doc, within(keyed.at.key))
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
