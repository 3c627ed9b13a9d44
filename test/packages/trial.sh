# Tests Debian's package: podman's containers keep working when it replaces the reference's plugins,
# is upgraded and is removed. It is the first process of its namespaces.
set -eEuo pipefail
mkdir -p /run/netns /tmp && chmod 1777 /tmp
mount -t cgroup2 none /sys/fs/cgroup # crun requires one
install -D /bin/busybox /srv/rootfs/bin/busybox

step='before' bound=30 # limit of each wait, in seconds

failed() {
	trap - ERR
	echo "packages: FAIL: $step: $1"
	dpkg -l podman cnibox containernetworking-plugins
	ls -l /usr/lib/cni /opt/cni/bin
	podman ps -a
	nft list ruleset
	exit 1
} 2>&1
trap 'failed "line $LINENO: $BASH_COMMAND"' ERR

page() { [ "$(busybox timeout 4 busybox wget -q -O - "http://10.88.0.1:$1/")" = cnibox ]; }
serves() {
	local end=$((SECONDS + bound))
	until page "$1" 2>/dev/null; do
		[ "$SECONDS" -lt "$end" ] || failed "not within $bound s: port $1 leads to the container"
		sleep 0.05
	done
	echo "packages: $step: port $1 leads to the container"
}
run() { podman run -d --name "$1" -p "$2:80" --rootfs /srv/rootfs:O /bin/busybox httpd -f -p 80 -h /www >/dev/null; }
has() { [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = "${2-ii }" ]; }

run old 8080
serves 8080

step='install'
apt-get -qq -o Dpkg::Use-Pty=0 install -y /trial/cnibox.deb
has podman
has cnibox
! has containernetworking-plugins
cnibox verify /usr/lib/cni >/dev/null
[ ! -e /opt/cni/bin/bridge ] # it runs no script
cnibox install --create /opt/cni/bin >/dev/null
[ "$(cat /opt/cni/bin/bridge)" = '#!/usr/lib/cni/cnibox' ]
cni-exec version >/dev/null
[ -f /lib/systemd/system/cnibox-boot.service ] && grep -q '^ExecStart=/usr/lib/cni/cni-exec reload$' /lib/systemd/system/cnibox-boot.service
! find /etc/systemd/system -name 'cni*' | grep . # nothing is enabled
serves 8080
run new 8081
serves 8081
podman rm -f -t 0 old >/dev/null
! page 8080
run again 8080
serves 8080

step='upgrade'
dpkg -i /trial/cnibox.deb >/dev/null
has cnibox
[ -e /opt/cni/bin/bridge ]
serves 8081
run third 8082
serves 8082

step='going back'
cnibox uninstall /opt/cni/bin >/dev/null
podman rm -f -t 0 new again third >/dev/null
[ -z "$(nft list map inet cnibox dnat4 2>/dev/null | grep elements || true)" ]
apt-get -qq -o Dpkg::Use-Pty=0 install -y /var/cache/apt/archives/containernetworking-plugins_*.deb
has podman
has containernetworking-plugins
! has cnibox
[ ! -e /usr/lib/cni/cnibox ] && [ ! -e /opt/cni/bin/bridge ]
run back 8083
serves 8083

step='removal'
podman rm -f -t 0 back >/dev/null
apt-get -qq -o Dpkg::Use-Pty=0 install -y /trial/cnibox.deb
has podman
dpkg --force-depends -r cnibox >/dev/null 2>&1
[ ! -e /usr/lib/cni/cnibox ] && [ ! -e /usr/sbin/cni-exec ] && [ ! -e /opt/cni/bin/bridge ]
echo "packages: $step: nothing is left"
