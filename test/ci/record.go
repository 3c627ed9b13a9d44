package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A record is a file with the results of the steps of one commit, a line each. A nil record keeps nothing.
type record struct {
	path    string
	results map[string]result // that passed
}

// openRecord reads what has passed of the commit that is checked out, in a directory. It returns nil where
// the tree is not that of a commit.
func openRecord(dir string) (*record, error) {
	changes, err := exec.Command("git", "status", "--porcelain").Output()
	if err != nil || len(changes) > 0 {
		return nil, nil
	}
	head, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return nil, nil
	}
	path := filepath.Join(dir, strings.TrimSpace(string(head)))
	results, err := readRecord(path)
	if err != nil {
		return nil, err
	}
	return &record{path, results}, os.MkdirAll(dir, 0o755)
}

// readRecord returns the steps whose last result is that they passed.
func readRecord(path string) (map[string]result, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	results := map[string]result{}
	for line := range strings.Lines(string(text)) {
		var res result
		var seconds float64
		if n, _ := fmt.Sscan(line, &res.word, &seconds, &res.skipped, &res.name); n != 4 {
			continue
		}
		res.took = time.Duration(seconds * float64(time.Second))
		if res.word == "ok" {
			res.word = "earlier"
			results[res.name] = res
		} else {
			delete(results, res.name)
		}
	}
	return results, nil
}

// passed returns the result of a step that passed in an earlier run.
func (r *record) passed(name string) (result, bool) {
	if r == nil {
		return result{}, false
	}
	res, ok := r.results[name]
	return res, ok
}

// add appends a result.
func (r *record) add(res result) error {
	if r == nil {
		return nil
	}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %.0f %d %s\n", res.word, res.took.Seconds(), res.skipped, res.name)
	return errors.Join(err, f.Close())
}
