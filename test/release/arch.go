package main

// An arch is one of the Makefile's ARCHES, with its names in other systems; "": no packages of this
// kind.
type arch struct {
	name                     string
	env                      []string // of go build
	deb, rpm, apk, ipk, arch string
	os, variant              string // of the OCI platform
}

func (a arch) String() string { return a.name }

// arches has all architectures. Debian's armhf is ARMv7; ARMv6, as in the first Raspberry Pi, has
// no deb, but the archive. OpenWrt has a name for each processor: these are the most common ones.
var arches = []arch{
	{"amd64", goarch("amd64"), "amd64", "x86_64", "x86_64", "x86_64", "x86_64", "amd64", ""},
	{"arm64", goarch("arm64"), "arm64", "aarch64", "aarch64", "aarch64_generic", "aarch64", "arm64", "v8"},
	{"armv7", goarch("arm", "GOARM=7"), "armhf", "armv7hl", "armv7", "arm_cortex-a7_neon-vfpv4", "armv7h", "arm", "v7"},
	{"armv6", goarch("arm", "GOARM=6"), "", "armv6hl", "armhf", "arm_arm1176jzf-s_vfp", "armv6h", "arm", "v6"},
	{"386", goarch("386"), "i386", "i686", "x86", "i386_pentium4", "i686", "386", ""},
	{"riscv64", goarch("riscv64"), "riscv64", "riscv64", "riscv64", "riscv64_riscv64", "riscv64", "riscv64", ""},
	{"mips", goarch("mips", "GOMIPS=softfloat"), "", "", "", "mips_24kc", "", "mips", ""},
	{"mipsle", goarch("mipsle", "GOMIPS=softfloat"), "mipsel", "", "", "mipsel_24kc", "", "mipsle", ""},
	{"mips64le", goarch("mips64le"), "mips64el", "", "", "mips64el_mips64r2", "", "mips64le", ""},
	{"ppc64le", goarch("ppc64le"), "ppc64el", "ppc64le", "ppc64le", "", "", "ppc64le", ""},
	{"s390x", goarch("s390x"), "s390x", "s390x", "s390x", "", "", "s390x", ""},
	{"loong64", goarch("loong64"), "loong64", "loongarch64", "loongarch64", "loongarch64_generic", "loong64", "loong64", ""},
}

func goarch(name string, more ...string) []string { return append([]string{"GOARCH=" + name}, more...) }
