package ipam

import (
	"encoding/json"
	"strings"

	"cnibox/spec"
)

// NewResult reads routes and DNS of an "ipam" key, which have the form that
// they have in results; nil is none. Errors have code 7.
// They go through the result's own reader, so each is checked in one place alone.
func NewResult(routes, dns json.RawMessage) (*spec.Result, error) {
	members := map[string]json.RawMessage{}
	if routes != nil {
		members["routes"] = routes
	}
	if dns != nil {
		members["dns"] = dns
	}
	doc, err := json.Marshal(members)
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "ipam: %w", err)
	}
	res, err := spec.ParseResult(doc, spec.Newest)
	if key, keyed := spec.KeyOf(err); keyed != nil {
		return nil, spec.Errorf(spec.CodeConfig, "ipam.%w", keyed).AtKey("ipam." + key)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "ipam: %w", err)
	}
	return res, nil
}

// SplitWords splits a list at its commas; blanks around a word go, and empty words.
func SplitWords(list string) (words []string) {
	for _, word := range strings.Split(list, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}
