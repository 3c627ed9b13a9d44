package messages

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pinnedElsewhere has the files that may repeat phrases of the golden file, and why.
var pinnedElsewhere = map[string]string{
	"applets/phrases_test.go":                  "it compares each whole msg with that of the reference",
	"internal/schematest/schema_test.go":       "its checker is not the product, and has texts of its own",
	"test/script/testdata/cni-exec-json.txt":   "it compares whole documents of -o json",
	"test/script/testdata/lint-host.txt":       "it compares the whole output of lint",
	"test/script/testdata/troubleshooting.txt": "it is the output in docs/troubleshooting.md",
}

var (
	// phrase matches four words or more without values and punctuation.
	phrase = regexp.MustCompile(`[A-Za-z][A-Za-z'-]*( [A-Za-z][A-Za-z'-]*){3,}`)

	// notPhrases matches commands, names of the cases, and texts of the kernel and the Go library.
	notPhrases = regexp.MustCompile("`[^`]*`" + `|\b(demo|netns)\b|no such file or directory|read-only file system|unexpected end of JSON input`)

	// escape matches an escaped character of a regular expression.
	escape = regexp.MustCompile(`\\(.)`)
)

// A phrase of the golden file is in no other test, so that who changes its words changes them here
// alone. Other tests compare the code, what errors.Is finds, the key, the value, or fewer words.
func TestPhrasesArePinnedOnce(t *testing.T) {
	phrases := map[string]string{} // by their text: the name of a message
	for name, section := range sections(t) {
		_, text, _ := strings.Cut(section, "\nexit ") // the command is before it
		for _, p := range phrase.FindAllString(notPhrases.ReplaceAllString(text, "\n"), -1) {
			if len(p) >= 16 { // not "it must be from"
				phrases[p] = name
			}
		}
	}
	repeats := map[string]bool{} // files of pinnedElsewhere
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		file, _ := filepath.Rel(root, path)
		script := strings.HasSuffix(file, ".txt") && strings.Contains(file, "testdata/")
		if err != nil || !script && !strings.HasSuffix(file, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for i, line := range strings.Split(string(b), "\n") {
			line = escape.ReplaceAllString(strings.TrimSpace(line), "$1")
			if strings.HasPrefix(line, "//") || strings.HasPrefix(line, "#") {
				continue
			}
			for p, name := range phrases {
				switch {
				case !strings.Contains(line, p):
				case pinnedElsewhere[file] != "":
					repeats[file] = true
				case !strings.HasPrefix(file, "test/messages/"):
					t.Errorf("%s:%d: %q is in the message %q of %s", file, i+1, p, name, golden)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for file := range pinnedElsewhere {
		if !repeats[file] {
			t.Errorf("%s repeats no phrase of %s: delete it from the list", file, golden)
		}
	}
}
