//go:build !no_bridge

package applets_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

func processorTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Unknown keys cost little processor time, in proportion to their number.
func TestKernelManyUnknownKeysLinear(t *testing.T) {
	kerneltest.Slow(t)
	kerneltest.Measures(t)
	h := applettest.NewHost(t)
	for place, conf := range map[string]string{
		"top":              `{"cniVersion":"1.1.0","name":"demo","type":"bridge","ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}KEYS}`,
		"ipam":             `{"cniVersion":"1.1.0","name":"demo","type":"bridge","ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"KEYS}}`,
		"args.cni, result": `{"cniVersion":"1.1.0","name":"demo","type":"bridge","args":{"cni":{"ips":[]KEYS}},"prevResult":{"ips":[]KEYS}}`,
	} {
		took := func(count int) (call, decode time.Duration) {
			var keys strings.Builder
			for i := range count / (1 + strings.Count(conf, "KEYS}},")) {
				fmt.Fprintf(&keys, `,"key%d":1`, i)
			}
			conf := strings.ReplaceAll(conf, "KEYS", keys.String())
			p := h.Container("ctr")
			call, decode = time.Hour, time.Hour
			for range 3 {
				begin := processorTime()
				h.Must(spec.Add, "bridge", conf, p)
				call = min(call, processorTime()-begin)
				h.Must(spec.Del, "bridge", conf, p)
				begin = processorTime()
				var any any
				if err := json.Unmarshal([]byte(conf), &any); err != nil {
					t.Fatal(err)
				}
				decode = min(decode, processorTime()-begin)
			}
			return call, decode
		}
		few, _ := took(30_000)
		many, decode := took(150_000)
		t.Logf("%s: 30,000 keys: %v, 150,000: %v, which encoding/json decodes in %v", place, few, many, decode)
		if many > 8*few+100*time.Millisecond || many > 4*decode+100*time.Millisecond {
			t.Errorf("%s: 30,000 keys take %v of processor time, 150,000 take %v, of which encoding/json takes %v once", place, few, many, decode)
		}
	}
}
