package ipam

import (
	"encoding/json"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// NewResult parses routes and DNS of an "ipam" key, which have the same form as in results; nil is
// none. Errors have code 7. It uses the parser of results, so that only that checks them.
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
	if err == nil {
		err = res.CheckGateways()
	}
	if key, keyed := spec.KeyOf(err); keyed != nil {
		return nil, spec.Errorf(spec.CodeConfig, "ipam.%w", keyed).AtKey("ipam." + key)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "ipam: %w", err)
	}
	return res, nil
}

// SplitWords splits a list at its commas and omits surrounding blanks and empty words.
func SplitWords(list string) (words []string) {
	for word := range strings.SplitSeq(list, ",") {
		if word = strings.TrimSpace(word); word != "" {
			words = append(words, word)
		}
	}
	return words
}
