// Command pictures draws the pictures of the documents as SVG:
//
//	go run ./pictures -terminal ../docs/demo.svg ../docs/numbers.md <OUTPUT
//	dot -Tsvg NETWORK | go run ./pictures -graph ../docs/network.svg
//	go run ./pictures -chart ../docs/bench.svg ../docs/numbers.md
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	terminal := flag.String("terminal", "", "SVG of the text with colors that comes on standard input, whose figures must be near those of the tables in the operands")
	chart := flag.String("chart", "", "SVG of the tables in the operands that `make numbers` writes")
	graph := flag.String("graph", "", "SVG of dot, which comes on standard input, in the reader's colors")
	flag.Parse()
	var b bytes.Buffer
	path, err := *terminal+*chart+*graph, error(nil)
	switch path {
	case "":
		err = errors.New("one of -terminal, -chart and -graph is required")
	case *graph:
		err = withText(func(text string) error { return drawGraph(&b, text) })
	case *chart:
		err = withFigures(func(figures map[cell]figure) error { return drawChart(&b, figures) })
	case *terminal:
		err = withText(func(text string) error {
			return withFigures(func(figures map[cell]figure) error {
				return errors.Join(near(text, figures), drawTerminal(&b, text))
			})
		})
	default:
		err = errors.New("-terminal, -chart and -graph cannot be combined")
	}
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func withText(draw func(string) error) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	return draw(string(text))
}

func withFigures(draw func(map[cell]figure) error) error {
	figures, err := readTables(flag.Args())
	if err != nil {
		return err
	}
	return draw(figures)
}
