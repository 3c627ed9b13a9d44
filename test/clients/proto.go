package main

import (
	"encoding/binary"
	"fmt"
)

// A message is a protocol buffer: the little of its encoding that the calls
// need (protobuf.dev/programming-guides/encoding).
type message []byte

// The wire types of a field.
const (
	varint = 0
	sized  = 2 // strings, bytes and messages, after their length
)

// number appends a field of an integer, boolean or enumeration type.
func (m message) number(field int, n uint64) message {
	m = binary.AppendUvarint(m, uint64(field)<<3|varint)
	return binary.AppendUvarint(m, n)
}

// text appends a string field.
func (m message) text(field int, s string) message {
	m = binary.AppendUvarint(m, uint64(field)<<3|sized)
	m = binary.AppendUvarint(m, uint64(len(s)))
	return append(m, s...)
}

// sub appends a message field.
func (m message) sub(field int, inner message) message { return m.text(field, string(inner)) }

// find returns all values at a path of field numbers, in their order. The value
// of a number is its varint.
func (m message) find(path ...int) ([]message, error) {
	if len(path) == 0 {
		return []message{m}, nil
	}
	var found []message
	for len(m) > 0 {
		field, value, rest, err := m.next()
		if err != nil {
			return nil, err
		}
		m = rest
		if field != path[0] {
			continue
		}
		inner, err := value.find(path[1:]...)
		if err != nil {
			return nil, err
		}
		found = append(found, inner...)
	}
	return found, nil
}

// first returns the first value at a path as text; "" if there is none.
func (m message) first(path ...int) (string, error) {
	found, err := m.find(path...)
	if err != nil || len(found) == 0 {
		return "", err
	}
	return string(found[0]), nil
}

// next cuts off one field.
func (m message) next() (field int, value, rest message, err error) {
	tag, n := binary.Uvarint(m)
	if n <= 0 {
		return 0, nil, nil, fmt.Errorf("no tag in % x", []byte(m))
	}
	m = m[n:]
	size, n := binary.Uvarint(m)
	if n <= 0 {
		return 0, nil, nil, fmt.Errorf("field %d has no value", tag>>3)
	}
	if tag&7 == varint {
		return int(tag >> 3), m[:n], m[n:], nil
	}
	m = m[n:]
	if tag&7 != sized || size > uint64(len(m)) {
		return 0, nil, nil, fmt.Errorf("field %d of type %d, %d bytes: cannot be read", tag>>3, tag&7, size)
	}
	return int(tag >> 3), m[:size], m[size:], nil
}
