#!/bin/sh
# Two containers on the embedded default network, as `make demo` shows them: attached, drawn, in traffic with each
# other, the host and a machine outside, and detached again. All of it is in namespaces of its own, with /run of
# its own, and ends with them: this machine's links, rules and files are neither seen nor changed.
#
#   demo.sh CNIBOX TRAFFIC [GRAPH]
#
# CNIBOX is the binary, TRAFFIC that of traffic.go, and GRAPH a file for what `cni-exec tree --dot` prints.
set -eu
[ "$(id -u)" -eq 0 ] && user='' || user=-U
# shellcheck disable=SC2086 # $user is one option or none
if [ -z "${DEMO_NETNS-}" ]; then
	unshare $user ${user:+-r} -mn true || {
		echo "demo: it needs network namespaces: run it as root, or allow user namespaces (sysctl user.max_user_namespaces)" >&2
		exit 1
	}
	DEMO_NETNS=$(readlink /proc/self/ns/net)
	export DEMO_NETNS
	exec unshare $user ${user:+-r} -mn sh "$0" "$@"
fi
[ "$DEMO_NETNS" != "$(readlink /proc/self/ns/net)" ]
cnibox=$1 traffic=$2 servers=
trap '[ -z "$servers" ] || kill $servers' EXIT
trap 'exit 1' INT TERM
mount -t tmpfs tmpfs /run
mkdir /run/bin /run/net.d
ln -s "$cnibox" /run/bin/cni-exec
ln -s "$cnibox" /run/bin/loopback
PATH=/run/bin:$PATH
export CNIBOX_STATE=/run/state NETCONFPATH=/run/none

bold='' plain='' faint=''
if [ -t 1 ] && [ -z "${NO_COLOR-}" ] || [ -n "${DEMO_COLOR-}" ]; then
	bold=$(printf '\033[1m') faint=$(printf '\033[2m') plain=$(printf '\033[0m')
fi
title() { printf '\n%s%s%s  %s%s%s\n' "$bold" "$1" "$plain" "$faint" "$2" "$plain"; }
exec 3>&1
show() {
	printf ' $ %s\n' "$*" >&3
	"$@" 2>/run/said || { cat /run/said >&2; exit 1; }
}
# ask NAMESPACE|host ADDRESS TEXT [SEEN]: a megabyte from there to a server.
ask() {
	at=$1 to=$2 text=$3
	shift 3
	if [ "$at" = host ]; then seen=$("$traffic" ask "$to" "$@"); else seen=$(cni-exec enter "$at" -- "$traffic" ask "$to" "$@"); fi
	printf ' %-7s → %-26s %-19s as %s\n' "$at" "$to" "$text" "$seen"
}
address() { sed -n "s,.*\"address\": \"\($1\)/.*,\1,p" "$2"; }

# On the host lo is up.
echo '{"cniVersion":"1.1.0","name":"lo","type":"loopback"}' |
	CNI_COMMAND=ADD CNI_CONTAINERID=host CNI_IFNAME=lo CNI_NETNS=/proc/self/ns/net CNI_NETNS_OVERRIDE=1 CNI_PATH=/run/bin loopback >/run/lo

printf '%scnibox: two containers on one binary of %s bytes%s\n' "$bold" "$(wc -c <"$cnibox")" "$plain"
title Attach 'no configuration, no ip, nft or iptables'
show cni-exec add --create --publish 8080:80 cnibox web >/run/web
show cni-exec add --create cnibox client >/run/client
web4=$(address '[0-9.]*' /run/web) web6=$(address 'f[0-9a-f:]*' /run/web) client4=$(address '[0-9.]*' /run/client)

title Built 'as the kernel reports it'
show cni-exec tree
show cni-exec show web | sed -n '/^host side/p; /^ports/p; /^holds/,$p'
[ -z "${3-}" ] || cni-exec tree --dot >"$3"

# A machine outside is at the other end of a wire.
echo '{"cniVersion":"1.1.0","name":"outside","plugins":[{"type":"ptp","ipam":{"type":"static",
	"addresses":[{"address":"198.51.100.2/32","gateway":"198.51.100.1"}]}}]}' >/run/net.d/outside.conflist
cni-exec add --create --conf-dir /run/net.d outside outside >/run/outside

title Traffic '1 MB there and back; as: the address that the other side saw'
for at in web outside; do
	cni-exec enter "$at" -- "$traffic" serve :80 &
	servers="$servers $!"
done
ask client "$web4:80" direct "$client4"
ask client "[$web6]:80" direct
ask outside 198.51.100.1:8080 'published port' 198.51.100.2
ask host 127.0.0.1:8080 'published port'
ask client 198.51.100.1:8080 'published port'
ask web 198.51.100.1:8080 'own published port'
ask client 198.51.100.2:80 masqueraded 198.51.100.1

title Detach ''
show cni-exec check
# shellcheck disable=SC2086 # a list
kill $servers && wait
servers=
show cni-exec del --delete cnibox web
show cni-exec del --delete cnibox client
"$traffic" refused 127.0.0.1:8080
cni-exec del --delete --conf-dir /run/net.d outside outside
left=$(grep -o 'veth[^:]*' /proc/net/dev || :; find /run/netns /run/state -type f \( -path '*/netns/*' -o -name 'cnibox-*' -o -name '[0-9]*.[0-9]*.[0-9]*' \))
[ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }
echo ' left behind: no link, no published port, no lease, no cached result'
printf '%s The bridge stays for the next container. All of this was in a sandbox, which ends here.%s\n' "$faint" "$plain"
