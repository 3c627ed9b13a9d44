package cniexec

import (
	"context"

	"github.com/cnibox/cnibox/applets/cniexec/doctor"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/lint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/disk"
)

func doctorVerb() *verb {
	return &verb{name: "doctor", group: "Repair", operands: "[ID|NETWORK]", summary: "find what keeps networks from working", new: func(c *call) action { return &doctorCall{call: c} },
		text: `It looks at the kernel, its settings, the rules of other programs, directories
of plugins, the networks, and what is attached or left over; of a container or
a network at what concerns that. A finding is a fault, a risk or a hint, with
what to do on a line below it. The exit code is 1 for faults alone, and 3 where
there is none, but something could not be tested, as without root. CHECK is run
of each attachment, and it is asked what this host does with packets to and from
each; none leaves it.`,
		examples: []example{
			{"cni-exec doctor blue", "what concerns one container; change nothing"},
			{"cni-exec doctor --fix --report /tmp/report.txt", "repair what can be, and write a bug report"},
		},
	}
}

// A doctorCall is one call of doctor.
type doctorCall struct {
	*call
	fix        bool
	silent     bool
	reportFile string // empty: none
}

func (c *doctorCall) flags(f *flagSet) {
	f.BoolVar(&c.fix, "fix", false, "repair what is cnibox's own, and nothing else")
	f.BoolVar(&c.silent, "no-probe", false, "send no packets of its own to and from what is attached")
	f.name(&c.reportFile, "report", "", "`FILE` write all that was looked at there, without names and public addresses")
	f.outputs("`json` print JSON")
}

// do prints what is wrong with this host, and how to repair it. The exit code is 1 if there are
// faults.
func (c *doctorCall) do(ctx context.Context, operands []string) (int, error) {
	if err := c.tooMany(operands, 1); err != nil {
		return 0, err
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	host := c.host()
	if len(operands) == 1 {
		c.about, host.Name = operands[0], operands[0]
	}
	d, err := doctor.Examine(ctx, host)
	if err != nil {
		return 0, err
	}
	if c.fix {
		if d, err = d.Fix(ctx); err != nil {
			return 0, err
		}
	}
	if c.reportFile != "" {
		text, err := d.Report()
		if err == nil {
			err = disk.Output(c.reportFile, []byte(text), 0o600)
		}
		if err != nil {
			return 0, err
		}
	}
	return c.printFindings(d)
}

// A doctorDoc is the document of doctor.
type doctorDoc struct {
	Checks int              `json:"checks"` // number of checked parts
	Fixed  []doctor.Finding `json:"fixed"`  // by --fix
	findingsDoc
}

// host returns what a doctor needs to know of the call.
func (c *doctorCall) host() doctor.Host {
	silent := func(string, ...any) {}
	say := func(string, hint.Remedy) {} // the findings that were fixed are printed at the end
	if c.output == outputJSON {
		say = c.sayOutcome
	}
	return doctor.Host{
		Runner: c.runner, Applets: c.Applets, Getenv: c.Getenv, ConfDir: c.confDir, Path: c.path, Plugins: c.describer(),
		NoProbe: c.silent, Limit: c.patience(), Remedies: c.remedies(nil),
		Networks: func(v *inventory.Inventory) []*inventory.Network { return c.networksOf(v, silent) },
		Lint:     func(dir string) ([]*lint.Finding, error) { return c.lintFiles(dir) },
		Restore: func(ctx context.Context, entries []*chain.Entry) error {
			_, err := c.restore(ctx, entries, nil, say)
			return err
		},
	}
}

func (c *doctorCall) printFindings(d *doctor.Doctor) (int, error) {
	exit := exitOK
	switch {
	case d.Faulty():
		exit = exitError
	case d.Undone:
		exit = exitUndone
	}
	if c.output == outputJSON {
		_, err := c.writeJSON(doctorDoc{d.Checks, d.Documents(d.Fixed), findingsDoc{d.Documents(d.Found), notNull(d.Untested)}})
		return exit, err
	}
	for _, text := range d.Untested {
		c.runner.Warn("not tested: %s", text)
	}
	_, err := c.write(d.Text())
	return exit, err
}
