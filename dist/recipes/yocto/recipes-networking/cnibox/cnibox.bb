SUMMARY = "CNI plugins and their runtime in one static binary"
DESCRIPTION = "All plugins that a node needs (bridge, host-local, portmap, firewall and the others), and \
cni-exec, which attaches network namespaces without a daemon. They speak netlink and nftables \
and start no helper programs."
HOMEPAGE = "https://github.com/cnibox/cnibox"
LICENSE = "Apache-2.0 & BSD-3-Clause & MIT"
LIC_FILES_CHKSUM = "file://LICENSE;md5=@LICENSE_MD5@"

# It has the modules in vendor: nothing else is fetched.
SRC_URI = "https://github.com/cnibox/cnibox/releases/download/v${PV}/cnibox-${PV}.tar.gz"
SRC_URI[sha256sum] = "@SHA256@"

# One module, whose archive has its own directory: the class "go" would unpack it elsewhere.
inherit goarch systemd bash-completion
DEPENDS = "go-native"

SYSTEMD_SERVICE:${PN} = "cnibox-boot.service cnibox-watch.service cnibox-dhcp.service"
SYSTEMD_AUTO_ENABLE = "disable"

export GOOS = "${TARGET_GOOS}"
export GOARCH = "${TARGET_GOARCH}"
export GOARM = "${TARGET_GOARM}"
export GO386 = "${TARGET_GO386}"
export GOMIPS = "${TARGET_GOMIPS}"
export GOTOOLCHAIN = "local"
export GOCACHE = "${B}/.go-cache"

do_compile() {
	oe_runmake -C ${S} build VERSION=${PV} COMMIT=@COMMIT@
}

do_install() {
	oe_runmake -C ${S} install DESTDIR=${D} BINDIR=${libexecdir}/cni SBINDIR=${sbindir} DATADIR=${datadir} \
		UNITDIR=${systemd_system_unitdir} VERSION=${PV} COMMIT=@COMMIT@
}

FILES:${PN} += "${libexecdir}/cni ${systemd_system_unitdir} ${datadir}/zsh ${datadir}/fish"
INSANE_SKIP:${PN} += "already-stripped"
RCONFLICTS:${PN} = "cni"
