package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk" // these register themselves
	_ "github.com/goreleaser/nfpm/v2/arch"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/ipk"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// A format is a package format, with the paths of its distributions.
type format struct {
	name    string // of nfpm
	end     string // suffix of the file's name
	arch    func(arch) string
	plugins string   // plugin directory of the distribution's runtimes
	stands  []string // packages that it provides, replaces and conflicts with
	units   string   // of systemd; "": none
	openrc  bool
	procd   bool
	pages   bool // has manual pages and completions
}

// formats have the plugins where each distribution's podman and CRI-O look for them.
var formats = []format{
	{"deb", ".deb", func(a arch) string { return a.deb }, "/usr/lib/cni", []string{"containernetworking-plugins"}, "/usr/lib/systemd/system", false, false, true},
	{"rpm", ".rpm", func(a arch) string { return a.rpm }, "/usr/libexec/cni", []string{"containernetworking-plugins"}, "/usr/lib/systemd/system", false, false, true},
	{"apk", ".apk", func(a arch) string { return a.apk }, "/usr/libexec/cni", []string{"cni-plugins"}, "", true, false, true},
	{"archlinux", ".pkg.tar.zst", func(a arch) string { return a.arch }, "/usr/lib/cni", []string{"cni-plugins"}, "/usr/lib/systemd/system", false, false, true},
	{"ipk", ".ipk", func(a arch) string { return a.ipk }, "/usr/lib/cni", []string{"cni-plugins"}, "", false, true, false},
}

// referenceVersion is the version of the reference plugins that ours is compatible with.
const referenceVersion = "1.9.1"

// licences are those of the binary: ours, and those of Go and the modules that it links.
const licences = "Apache-2.0 AND BSD-3-Clause AND MIT"

// licenceDir has the licences; Debian has them in its copyright file.
const licenceDir = "/usr/share/licenses/cnibox"

const summary = "CNI plugins and their runtime in one static binary"

const description = summary + `
All plugins that a node needs (bridge, host-local, portmap, firewall and the
others), and cni-exec, which attaches network namespaces without a daemon.
They speak netlink and nftables and start no helper programs.`

// packages writes all packages of an architecture.
func (r *release) packages(a arch, binary string, c common) error {
	for _, f := range formats {
		if f.arch(a) == "" {
			continue
		}
		if err := r.pack(f, a, binary, c); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// pack writes one package.
func (r *release) pack(f format, a arch, binary string, c common) (err error) {
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	list := f.files(data, c)
	if f.name == "deb" {
		list = append(list, r.debianDocs(c)...)
	} else {
		list = append(list, file{name: licenceDir + "/LICENSE", mode: 0o644, data: slices.Concat(allLicences(c)...)})
	}
	dir := filepath.Join(r.stage, a.name, f.name)
	var contents files.Contents
	for _, file := range list {
		info := &files.ContentFileInfo{Owner: "root", Group: "root", Mode: file.mode, MTime: r.time}
		if file.target != "" {
			contents = append(contents, &files.Content{Type: files.TypeSymlink, Source: file.target, Destination: file.name, FileInfo: info})
			continue
		}
		path := filepath.Join(dir, file.name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, file.data, 0o644), os.Chtimes(path, r.time, r.time)); err != nil {
			return err
		}
		kind := files.TypeFile
		switch {
		case f.name != "rpm":
		case strings.HasPrefix(file.name, "/usr/share/man/"):
			kind = files.TypeRPMDoc
		case strings.HasPrefix(file.name, licenceDir):
			kind = files.TypeRPMLicence
		}
		contents = append(contents, &files.Content{Type: kind, Source: path, Destination: file.name, FileInfo: info})
	}
	if f.name == "rpm" { // in the others a file implies its directory
		for _, dir := range []string{f.plugins, licenceDir} {
			contents = append(contents, &files.Content{Type: files.TypeDir, Destination: dir, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: 0o755, MTime: r.time}})
		}
	}
	info := &nfpm.Info{
		Name: "cnibox", Arch: f.arch(a), Version: r.version, Section: "net", Priority: "optional",
		Maintainer: r.maintainer, Vendor: "cnibox", Homepage: "https://github.com/cnibox/cnibox", License: licences,
		Description: description, MTime: r.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{Provides: f.stands, Replaces: f.stands, Conflicts: f.stands, Contents: contents, Umask: 0o022},
	}
	info.Deb.Arch, info.RPM.Arch, info.APK.Arch, info.ArchLinux.Arch, info.IPK.Arch = info.Arch, info.Arch, info.Arch, info.Arch, info.Arch
	info.RPM.BuildHost, info.RPM.Summary, info.RPM.Compression = "localhost", summary, "xz"
	info.Deb.Compression = "xz"
	// Of Debian's packages none depends on a version of the reference, so this claims none: podman, by way of
	// golang-github-containers-common, depends on container-network-stack, and containerd suggests the plugins. With apk,
	// two packages cannot provide a name with a version.
	switch stands := f.stands[0]; f.name {
	case "deb":
		info.Provides = []string{"container-network-stack", stands}
	case "rpm":
		info.Provides = append([]string{stands + " = " + referenceVersion}, c.bundled...)
		info.Replaces = []string{stands + " < " + referenceVersion} // not what this one provides
	case "apk":
		info.Provides = []string{stands + "=" + referenceVersion + "-r0"}
	case "archlinux":
		info.Provides = []string{stands + "=" + referenceVersion}
	}
	if f.name == "apk" || f.name == "archlinux" {
		info.Description = summary // these have one line
	}
	info = nfpm.WithDefaults(info)
	if f.name == "apk" && info.Prerelease != "" { // apk allows few suffixes, without letters after them
		info.Prerelease, info.VersionMetadata = "git"+r.time.Format("20060102"), ""
	}
	if err := nfpm.PrepareForPackager(info, f.name); err != nil {
		return err
	}
	p, err := nfpm.Get(f.name)
	if err != nil {
		return err
	}
	out, err := r.create(fmt.Sprintf("cnibox_%s_%s%s", r.version, info.Arch, f.end))
	if err != nil {
		return err
	}
	return errors.Join(p.Package(info, out), out.Close())
}

// files returns the files of the package.
func (f format) files(binary []byte, c common) (list []file) {
	list = append(inDir(f.plugins, launchers(f.plugins, c.plugins)), file{name: f.plugins + "/cnibox", mode: 0o755, data: binary})
	for _, name := range []string{"cnibox", "cni-exec"} {
		list = append(list, file{name: "/usr/sbin/" + name, target: ".." + strings.TrimPrefix(f.plugins, "/usr") + "/cnibox"})
	}
	if f.pages {
		list = append(list, inDir("/usr/share", c.completions)...)
		for _, page := range c.man {
			list = append(list, file{name: "/usr/share/man/man8/" + page.name + ".gz", mode: 0o644, data: gzipped(page.data)})
		}
	}
	if f.units != "" {
		list = append(list, inDir(f.units, withDir(c.units, f.plugins))...)
	}
	if f.openrc {
		list = append(list, inDir("/etc/init.d", withDir(c.openrc, f.plugins))...)
	}
	if f.procd {
		list = append(list, inDir("/etc/init.d", withDir(c.procd, f.plugins))...)
	}
	return list
}

// allLicences returns ours and those of the linked modules, each below its module's name.
func allLicences(c common) (text [][]byte) {
	for _, f := range c.docs {
		if f.name == "LICENSE" {
			text = append(text, []byte("cnibox\n\n"), f.data)
		}
	}
	for _, f := range c.licences {
		text = append(text, fmt.Appendf(nil, "\n\n%s\n\n", f.name), f.data)
	}
	return text
}

// debianDocs returns the files that Debian's policy requires.
func (r *release) debianDocs(c common) []file {
	var copyright strings.Builder
	copyright.WriteString("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: cnibox\n\n" +
		"Files: *\nCopyright: the authors of cnibox\nLicense: Apache-2.0\n On Debian systems, the full text is in /usr/share/common-licenses/Apache-2.0.\n")
	for _, f := range c.licences {
		if bytes.Contains(f.data, []byte("Apache License")) && bytes.Contains(f.data, []byte("Version 2.0, January 2004")) {
			fmt.Fprintf(&copyright, "\nFiles: %s\nCopyright: the authors of the module\nLicense: Apache-2.0\n", f.name)
			continue
		}
		fmt.Fprintf(&copyright, "\nFiles: %s\nCopyright: as in the licence below\nLicense: %s\n", f.name, strings.ReplaceAll(f.name, "/", "-"))
		for line := range strings.Lines(string(f.data)) {
			if line = strings.TrimRight(line, " \t\r\n"); line == "" {
				line = "."
			}
			copyright.WriteString(" " + line + "\n")
		}
	}
	changes := fmt.Sprintf("cnibox (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n",
		debianVersion(r.version), r.maintainer, r.time.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	docs := []file{{name: "copyright", mode: 0o644, data: []byte(copyright.String())}, {name: "changelog.gz", mode: 0o644, data: gzipped([]byte(changes))}}
	for _, f := range c.docs {
		if f.name == "CHANGELOG.md" {
			docs = append(docs, file{name: f.name + ".gz", mode: 0o644, data: gzipped(f.data)})
		}
	}
	return append(inDir("/usr/share/doc/cnibox", append(docs, inDir("examples", c.examples)...)),
		file{name: "/usr/share/lintian/overrides/cnibox", mode: 0o644, data: []byte(overrides)})
}

// overrides are the tags of lintian that the package has for a reason.
const overrides = `# One static binary is what the package is for: nodes with any libc, or none, run it.
cnibox: statically-linked-binary
# Debian starts systemd; the scripts of OpenRC are in the archive.
cnibox: package-supports-alternative-init-but-no-init.d-script
# The instance is the unit that deletes the rules: nftables or firewalld.
cnibox: systemd-service-file-refers-to-unusual-wantedby-target
`

// debianVersion returns a version as nfpm writes it for Debian.
func debianVersion(v string) string { return strings.Replace(v, "-", "~", 1) }
