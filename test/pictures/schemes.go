package main

import (
	"errors"
	"io"
	"strings"
)

// schemes is the style of chart and graph: ground and lines have the colors of what a reader has chosen, light or dark.
const schemes = `<style>
.ground, .graph > polygon { fill: #ffffff; stroke: none }
text { fill: #1f2328 }
.ours { fill: #1f6feb }
.theirs { fill: #b0b8c1 }
.node polygon, .node path, .edge path { stroke: #59636e }
@media (prefers-color-scheme: dark) {
.ground, .graph > polygon { fill: #0d1117 }
text { fill: #e6edf3 }
.ours { fill: #4493f8 }
.theirs { fill: #6e7681 }
.node polygon, .node path, .edge path { stroke: #9198a1 }
}
</style>
`

// drawGraph gives a graph, as dot draws it, the style.
func drawGraph(w io.Writer, svg string) error {
	before, after, found := strings.Cut(svg, "<g id=\"graph0\"")
	before, _, _ = strings.Cut(before, "<style>")
	if !found {
		return errors.New("no graph of dot on standard input")
	}
	_, err := io.WriteString(w, before+schemes+"<g id=\"graph0\""+after)
	return err
}
