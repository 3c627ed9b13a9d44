package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
)

// upList is a network for the namespaces of a file.
const upList = `{"cniVersion":"1.1.0","name":"demo","plugins":[{"type":"bridge","bridge":"br0","isGateway":true,
	"ipam":{"type":"host-local","subnet":"10.1.0.0/16","dataDir":"$DIR/leases"}}]}`

// upFile writes a file with count namespaces, and returns its path.
func (r *reloading) upFile(count int) (file string) {
	r.Helper()
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf(`"%s-%d":[{"network":"demo"}]`, r.upPrefix(), i))
	}
	r.write("state.json", `{"namespaces":{`+strings.Join(names, ",")+`}}`)
	return r.Path("state.json")
}

// upPrefix begins the names of namespaces, which all tests have in one directory.
func (r *reloading) upPrefix() string {
	return fmt.Sprintf("up-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(r.Dir)))
}

// What up does for attachments that are all there, and down for each, does not grow with their number:
// the cache is read a few times, and not for each namespace.
func TestKernelUpGrowth(t *testing.T) {
	r := &reloading{world: newWorld(t)}
	r.write("net.d/demo.conflist", upList)
	const few, many = 3, 24
	count := func(verb string, namespaces int) map[fault.Work]int {
		t.Helper()
		return r.measured(func() {
			r.must(verb, r.exec([]string{"GOMAXPROCS=1"}, verb, r.upFile(namespaces)))
		}).Work
	}
	work := map[string]map[int]map[fault.Work]int{"up": {}, "down": {}}
	for _, n := range []int{few, many} {
		r.must("up", r.exec(nil, "up", r.upFile(n)))
		work["up"][n], work["down"][n] = count("up", n), count("down", n)
	}
	for verb, work := range work {
		t.Logf("%s: %v with %d, %v with %d", verb, work[few], few, work[many], many)
		for _, w := range []fault.Work{fault.Files, fault.Names, fault.Namespaces, fault.Requests, fault.Answers, fault.Locks, fault.Lists} {
			if most := work[few][w] * many / few; work[many][w] > most {
				t.Errorf("%s: %d %s with %d attachments, %d with %d", verb, work[few][w], w, few, work[many][w], many)
			}
		}
	}
	kerneltest.Until(t, "the end of the links", func() bool { return r.veths() == 0 })
}
