package twin

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// head is the text above the table, which is rewritten with it.
const head = `# Twin runs

What the reference plugins (containernetworking-plugins 1.1.1) and cnibox make of the same configuration, by
` + "`go test -run TestKernelTwin -update .`" + `. The identifiers are those of differences.txt, where the reasons are.

| case | what is different |
|---|---|
`

// Row returns a case's line of the report. It leaves out differences whose names begin with K: only
// some kernels have them.
func Row(name string, ids []string) string {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id[0] == 'K' })
	if len(ids) == 0 {
		return fmt.Sprintf("| %s | nothing |", name)
	}
	return fmt.Sprintf("| %s | %s |", name, strings.Join(ids, ", "))
}

// ReadReport returns the lines by case name. A missing file is an empty report.
func ReadReport(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	rows := map[string]string{}
	for l := range strings.SplitSeq(string(b), "\n") {
		if name, _, ok := strings.Cut(strings.TrimPrefix(l, "| "), " | "); ok && strings.Contains(name, "/") {
			rows[name] = l
		}
	}
	return rows, nil
}

// WriteReport writes the lines in the order of the cases. A case that never ran has none.
func WriteReport(file string, cases []Case, rows map[string]string) error {
	text := head
	for _, c := range cases {
		if row := rows[c.Name]; row != "" {
			text += row + "\n"
		}
	}
	return os.WriteFile(file, []byte(text), 0o644)
}
