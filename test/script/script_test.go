package script_test

import (
	"testing"

	"cnibox/test/product"
	"cnibox/test/script"
)

func TestMain(m *testing.M) { product.Main(m, nil) }

func TestScripts(t *testing.T) {
	script.Suite{Dir: "testdata/plain", Plain: true}.Run(t)
}

func TestKernelScripts(t *testing.T) {
	script.Suite{Dir: "testdata"}.Run(t)
}
