package cniexec

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/spec"
)

func versionVerb() *verb {
	return &verb{name: "version", group: "Attach", operands: "[NETWORK]", summary: "print the versions of this program, or of plugins", new: func(c *call) action { return &versionCall{call: c} },
		examples: []example{
			{"cni-exec version", "this program and the versions of the specification"},
			{"cni-exec version mynet", "those that each plugin of the network serves"},
		},
	}
}

// A versionCall is one call of version.
type versionCall struct {
	*call
}

func (c *versionCall) flags(f *flagSet) { f.outputs("`json` print JSON") }

func (c *versionCall) do(ctx context.Context, operands []string) (int, error) {
	if len(operands) > 0 {
		if err := c.networkOperands(operands, 1); err != nil {
			return 0, usage("version: %w", err)
		}
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	return exitOK, c.versions(ctx)
}

// versions prints those of this program, or of the plugins of a network.
func (c *versionCall) versions(ctx context.Context) error {
	if c.target.network == "" && c.output == outputJSON {
		_, err := c.writeJSON(newVersionDoc())
		return err
	}
	if c.target.network == "" {
		_, err := c.printVersion()
		return err
	}
	return c.pluginVersions(ctx)
}

type (
	// A versionDoc is the document of version.
	versionDoc struct {
		Release     string              `json:"release"`     // of the reference plugins
		Version     string              `json:"version"`     // of cnibox
		CNIVersions []string            `json:"cniVersions"` // served by this program
		Plugins     []pluginVersionsDoc `json:"plugins"`     // of the network
	}

	pluginVersionsDoc struct {
		Type        string   `json:"type"`
		File        string   `json:"file"` // empty: built in
		CNIVersions []string `json:"cniVersions"`
	}
)

func newVersionDoc() versionDoc {
	return versionDoc{applet.Release, applet.Version, applet.Served(&applet.Applet{Name: "cni-exec"}), []pluginVersionsDoc{}}
}

// pluginVersions prints which versions of the specification each plugin of a network serves. If one
// does not answer, it still prints the others.
func (c *versionCall) pluginVersions(ctx context.Context) error {
	l, err := c.load(c.target)
	if err != nil {
		return err
	}
	local := c.local()
	var b strings.Builder
	var errs []error
	doc := newVersionDoc()
	for _, p := range l.Plugins {
		file, versions, err := local.Versions(ctx, p.Type)
		if err != nil {
			errs = append(errs, fmt.Errorf("plugin %s: %w", p.Type, err))
			continue
		}
		doc.Plugins = append(doc.Plugins, pluginVersionsDoc{p.Type, file, notNull(versions)})
		if file == "" {
			file = "built in"
		}
		fmt.Fprintln(&b, spec.Printable(fmt.Sprintf("%s (%s): %s", p.Type, file, strings.Join(versions, " "))))
	}
	if c.output == outputJSON {
		_, err = c.writeJSON(doc)
	} else {
		_, err = c.write(b.String())
	}
	return errors.Join(append(errs, err)...)
}

// printVersion prints the version of this program.
func (c *call) printVersion() (int, error) { return c.write(applet.VersionLine("cni-exec")) }
