package script

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// checkDocuments checks the output of cni-exec with -o json, or of ls with -o jsonl, against the
// schema of its verb. Errors and results are those of the specification.
func checkDocuments(args []string, stdout string) error {
	verb := args[0]
	if strings.HasPrefix(verb, "-") || slices.Contains(args, "--help") {
		return nil // help is text
	}
	lines := slices.Contains(args, "jsonl")
	if lines {
		verb += "-line"
	} else if i := slices.Index(args, "-o"); i < 0 || i+1 == len(args) || args[i+1] != "json" {
		return nil
	}
	docs := []string{stdout}
	if lines {
		docs = slices.Collect(strings.Lines(stdout))
	}
	for _, doc := range docs {
		var value any
		if err := json.Unmarshal([]byte(doc), &value); err != nil {
			return fmt.Errorf("stdout is not one JSON document: %w", err)
		}
		if object, ok := value.(map[string]any); ok && object["cniVersion"] != nil {
			continue
		}
		schema, err := schemaOf(verb)
		if err != nil {
			return err
		}
		if err := schema.Validate(value); err != nil {
			return fmt.Errorf("stdout of %s: %w", verb, err)
		}
	}
	return nil
}

// schemaOf returns the schema of a verb. Its module must do nothing at process start, since each
// program of a script is this binary.
func schemaOf(verb string) (*jsonschema.Resolved, error) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "schema", verb+".json"))
	if err != nil {
		return nil, err
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", verb, err)
	}
	return schema.Resolve(nil)
}
