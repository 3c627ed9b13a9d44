package cniexec

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/applets/cniexec/inventory"
	"cnibox/chain"
	"cnibox/internal/disk"
	"cnibox/internal/memory"
)

func metricsVerb() *verb {
	return &verb{name: "metrics", instead: "ls -o openmetrics", new: func(c *call) action { return &metricsCall{call: c} }}
}

// A metricsCall is one call of metrics.
type metricsCall struct{ *call }

func (*metricsCall) flags(*flagSet) {}

func (c *metricsCall) do(_ context.Context, operands []string) (int, error) {
	if len(operands) > 0 {
		return 0, usage("metrics: %q is one operand too many", operands[0])
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
	v, err := c.look()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	networks := c.knownNetworks(v)
	writeFamily(&out, "cnibox_attachments", "gauge", "Attachments in the cache.", attachmentSamples(v))
	addresses, err := addressSamples(v, networks)
	writeFamily(&out, "cnibox_addresses", "gauge", "Addresses of host-local: used, free, and stale of the used ones.", addresses)
	if repairs != nil {
		writeFamily(&out, "cnibox_repairs", "counter", "Attachments that reload --watch has restored, or could not.", repairs(networks))
	}
	// They are gauges: they fall when a log is rotated, or only its end is read.
	calls, seconds, lerr := logSamples(c.Getenv(applet.LogEnv))
	writeFamily(&out, "cnibox_log_calls", "gauge", "Calls in the last 16 MiB of the log.", calls)
	writeFamily(&out, "cnibox_log_call_seconds", "gauge", "Time that these calls took.", seconds)
	out.WriteString("# EOF\n")
	return out.String(), errors.Join(err, lerr)
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

// maxLog is how much of the end of the log is read at most, in bytes.
const maxLog = 16 << 20

// maxLine is how much of a line of the log is looked at, in bytes; a line of ours has less.
const maxLine = 64 << 10

// logSamples counts the calls in the file that a value of CNIBOX_LOG names, and adds up their
// times.
func logSamples(where string) (calls, seconds map[string]float64, err error) {
	file := applet.LogFile(where)
	if file == "" {
		return nil, nil, nil
	}
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", file)
	}
	if err == nil && info.Size() > maxLog {
		_, err = f.Seek(-maxLog, io.SeekEnd)
	}
	if err != nil {
		return nil, nil, err
	}
	calls, seconds = map[string]float64{}, map[string]float64{}
	lines := bufio.NewReaderSize(io.LimitReader(f, maxLog), maxLine)
	for {
		line, rest, err := lines.ReadLine()
		text := string(line)
		for rest && err == nil { // other programs may write there as well
			_, rest, err = lines.ReadLine()
		}
		if err == io.EOF {
			return calls, seconds, nil
		}
		if err != nil {
			return calls, seconds, err
		}
		program, verb, result, took := logged(text)
		if verb == "" {
			continue
		}
		key := labels("program", program, "result", result, "verb", verb)
		calls[key]++
		seconds[key] += took.Seconds()
	}
}

// logged reads a line of the log. An empty verb means that it is not a whole line: the part that is
// read may begin within a line.
func logged(line string) (program, verb, result string, took time.Duration) {
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "msg":
			verb = value
		case "program":
			program = value
		case "duration":
			took, _ = time.ParseDuration(value)
		case "exit":
			result = "ok"
			if value != "0" {
				result = "error"
			}
		case "error": // the rest is the text of an error
			return program, verb, cmp.Or(result, "error"), took
		}
	}
	if result == "" {
		return "", "", "", 0
	}
	return program, verb, result, took
}
