// Command pictures draws the pictures of the documents as SVG:
//
//	go run ./pictures -terminal ../docs/demo.svg <OUTPUT
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
	terminal := flag.String("terminal", "", "SVG of the text with colors that comes on standard input")
	chart := flag.String("chart", "", "SVG of the tables in the operands that `make numbers` writes")
	flag.Parse()
	var b bytes.Buffer
	var err error
	path := *terminal
	switch {
	case *terminal != "" && *chart == "" && flag.NArg() == 0:
		var text []byte
		if text, err = io.ReadAll(os.Stdin); err == nil {
			err = drawTerminal(&b, string(text))
		}
	case *chart != "" && *terminal == "" && flag.NArg() > 0:
		path = *chart
		var figures map[cell]figure
		if figures, err = readTables(flag.Args()); err == nil {
			err = drawChart(&b, figures)
		}
	default:
		err = errors.New("one of -terminal and -chart is required")
	}
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}
