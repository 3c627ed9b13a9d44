package main

import (
	"errors"
	"fmt"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/rs/zerolog"
)

// sbom writes cnibox-VERSION-linux-ARCH.cdx.json, with the modules in the binary's build
// information.
func (r *release) sbom(a arch, binary string) (err error) {
	g, err := bin.NewGenerator(binary, bin.WithIncludeStdlib(true), bin.WithVersionOverride(r.version), bin.WithLogger(zerolog.Nop()))
	if err != nil {
		return err
	}
	bom, err := g.Generate()
	if err != nil {
		return err
	}
	bom.SerialNumber = "" // it would be random
	f, err := r.create(fmt.Sprintf("cnibox-%s-linux-%s.cdx.json", r.version, a.name))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}
