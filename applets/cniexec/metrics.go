package cniexec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/memory"
)

func metricsVerb() *verb {
	return &verb{name: "metrics", instead: "ls -o openmetrics", new: func(c *call) action { return &metricsCall{call: c} }}
}

// A metricsCall is one call of metrics.
type metricsCall struct{ *call }

func (*metricsCall) flags(*flagSet) {}

func (c *metricsCall) do(_ context.Context, operands []string) (int, error) {
	if err := c.tooMany(operands, 0); err != nil {
		return 0, err
	}
	return c.printMetrics()
}

// printMetrics writes all metrics to stdout.
func (c *call) printMetrics() (int, error) {
	defer memory.CollectLess()()
	text, err := c.metricsText(nil)
	if text != "" {
		_, werr := c.write(text)
		err = errors.Join(err, werr)
	}
	return exitOK, err
}

// metricsText returns all metrics as OpenMetrics, with the samples of repairs. With an error the
// text is incomplete or empty.
func (c *call) metricsText(repairs func([]*inventory.Network) map[string]float64) (string, error) {
	v, err := c.readInventory()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	networks := c.knownNetworks(v)
	writeFamily(&out, "cnibox_attachments", "gauge", "Attachments in the cache.", attachmentSamples(v))
	addresses, err := addressSamples(v, networks)
	writeFamily(&out, "cnibox_addresses", "gauge", "Addresses of ranges: used, free, and stale of the used ones.", addresses)
	if repairs != nil {
		writeFamily(&out, "cnibox_repairs", "counter", "Attachments that reload --watch has restored, or could not.", repairs(networks))
	}
	out.WriteString("# EOF\n")
	return out.String(), err
}

// repairs is the beginning of the lines with samples of repairs in a file of metrics.
const repairs = "cnibox_repairs_total{"

// writeMetrics writes the file of --metrics in one step, with the repairs already in it and those
// of restored. Its readers are other users, such as node_exporter.
func (c *reloadCall) writeMetrics(restored []restoredDoc) error {
	old, err := disk.Read(c.metrics, unix.O_NOFOLLOW, maxMetrics)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	text, err := c.metricsText(func(networks []*inventory.Network) map[string]float64 {
		samples := map[string]float64{}
		for _, n := range networks {
			samples[labels("network", n.Name, "result", "ok")] = 0
			samples[labels("network", n.Name, "result", "error")] = 0
		}
		for line := range strings.Lines(strings.ToValidUTF8(string(old), "\uFFFD")) {
			rest, ok := strings.CutPrefix(strings.TrimSpace(line), repairs)
			key, value, _ := strings.Cut(rest, "} ")
			if n, err := strconv.ParseFloat(value, 64); ok && err == nil {
				samples[key] = n
			}
		}
		for _, r := range restored {
			switch {
			case r.failed:
				samples[labels("network", r.Network, "result", "error")]++
			case len(r.Did) > 0:
				samples[labels("network", r.Network, "result", "ok")]++
			}
		}
		return samples
	})
	if text == "" {
		return err
	}
	return errors.Join(err, disk.Output(c.metrics, []byte(text), 0o644))
}

// maxMetrics is how much of a file of metrics is read at most, in bytes.
const maxMetrics = 16 << 20

// writeFamily writes the samples of one name in order: lines of labels and values. It omits a
// family without samples.
func writeFamily(out *strings.Builder, name, kind, help string, samples map[string]float64) {
	if len(samples) == 0 {
		return
	}
	fmt.Fprintf(out, "# TYPE %s %s\n# HELP %s %s\n", name, kind, name, help)
	if kind == "counter" {
		name += "_total"
	}
	for _, labels := range slices.Sorted(maps.Keys(samples)) {
		fmt.Fprintf(out, "%s{%s} %v\n", name, labels, samples[labels])
	}
}

// labels formats pairs of names and values, with the escapes of OpenMetrics, which is UTF-8.
func labels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, pairs[i]+`="`+escape.Replace(strings.ToValidUTF8(pairs[i+1], "\uFFFD"))+`"`)
	}
	return strings.Join(list, ",")
}

func attachmentSamples(v *inventory.Inventory) map[string]float64 {
	samples := map[string]float64{}
	for _, a := range v.Entries {
		state := a.State
		if state == chain.StateBusy && !a.Interrupted() { // a reload is no change of what is attached
			state, _ = a.QuickNamespace()
		}
		samples[labels("network", a.NetworkName, "state", state)]++
	}
	return samples
}

// addressSamples returns those of each range set. It omits what cannot be read, and reports that as
// the error.
func addressSamples(v *inventory.Inventory, networks []*inventory.Network) (map[string]float64, error) {
	samples := map[string]float64{}
	var errs []error
	for _, n := range networks {
		pools, err := v.Pools(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("leases of %s: %w", n.Name, err))
			continue
		}
		for _, p := range pools {
			var ranges []string
			for _, r := range p.Set {
				ranges = append(ranges, r.Subnet.String())
			}
			for state, count := range map[string]float64{"used": float64(p.Used), "free": float64(p.Free), "stale": float64(len(p.Stale))} {
				samples[labels("network", n.Name, "range", strings.Join(ranges, " "), "state", state)] = count
			}
		}
	}
	return samples, errors.Join(errs...)
}
