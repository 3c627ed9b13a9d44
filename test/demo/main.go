// Command demo shows what cnibox does, in some seconds:
//
//	go run ./demo [-bin ../bin/cnibox]
//
// It attaches two namespaces to the embedded default network, prints the links, addresses and rules,
// passes traffic between them, to the host, and to and from a machine outside, and detaches both. It
// runs in a sandbox and neither sees nor changes the machine's own links, rules and leases. The exit
// code is 0 only if every step succeeded.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"cnibox/test/sandbox"
)

func main() {
	bin := flag.String("bin", "../bin/cnibox", "the binary to show")
	color := flag.Bool("color", false, "color also where the output is not a terminal")
	graph := flag.String("graph", "", "file for what cni-exec tree --dot prints when both containers are attached")
	flag.Parse()
	code, err := run(*bin, *color, *graph)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// run enters the sandbox, if this process is outside.
func run(bin string, color bool, graph string) (code int, err error) {
	bin, err = filepath.Abs(bin)
	if err != nil {
		return 0, err
	}
	st, err := os.Stat(bin)
	if err != nil {
		return 0, fmt.Errorf("%w (`make build` makes it)", err)
	}
	if !sandbox.Inside() {
		return sandbox.Start()
	}
	if err := sandbox.Setup(); err != nil {
		return 0, err
	}
	p := newPage(os.Stdout)
	p.color = p.color || color
	p.title(fmt.Sprintf("cnibox: two containers on one binary of %.1f MB", float64(st.Size())/1e6))
	return 0, show(p, bin, graph)
}

// show runs the demo.
func show(p *page, bin, graph string) error {
	w := &world{bin: bin, page: p}
	p.section("Attach\t  no configuration, no ip, nft or iptables")
	for _, step := range []func() error{w.build, w.attach} {
		if err := step(); err != nil {
			return err
		}
	}
	p.section("Built")
	if err := w.drawTree(); err != nil {
		return err
	}
	if graph != "" {
		if err := w.writeGraph(graph); err != nil {
			return err
		}
	}
	p.section("Traffic\t  1 MB there and back; as: the address that the other side saw")
	if err := w.traffic(); err != nil {
		return err
	}
	p.section("Detach")
	for _, step := range []func() error{w.check, w.detach, w.proveEmpty} {
		if err := step(); err != nil {
			return err
		}
	}
	p.line("\t  The bridge stays for the next container. All of this was in a sandbox,")
	p.line("\t  which ends here; this machine's own network was not touched.")
	return nil
}
