# Tests what the OpenRC scripts of dist do, step by step. It is the first process of its namespaces,
# so all processes that it has started end with it.
set -eEuo pipefail
cd /root/cnibox
mkdir /run/netns

step='the runlevels' bound=60 # limit of each wait, in seconds

failed() {
	trap - ERR
	echo "openrc: FAIL: $step: $1"
	rc-status --all
	busybox ps
	cni-exec ls -o wide
	nft list ruleset
	ip addr
	exit 1
} 2>&1
trap 'failed "line $LINENO: $BASH_COMMAND"' ERR

# within WHAT COMMAND...: waits until the command succeeds.
within() {
	local what=$1 end=$((SECONDS + bound))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$end" ] || failed "not within $bound s: $what"
		sleep 0.02
	done
	echo "openrc: $step: $what"
}

page() { [ "$(busybox timeout 4 busybox wget -q -O - http://10.88.0.1:8080/)" = cnibox ]; }
bridge() { [ -n "$(ip -o link show up dev br-mynet)" ]; }
child() { cat "/run/openrc/options/$1/child_pid"; }
another() { local now && now=$(child "$1") && [ "$now" != "$2" ] && [ -d "/proc/$now" ]; }
programs() { busybox ps -o args | grep -E '^(supervise-daemon|/opt/cni/bin/)'; }

# comes_back SERVICE: its process is restarted after SIGKILL, without a limit on restarts.
comes_back() {
	local killed
	killed=$(child "$1")
	kill -9 "$killed"
	within "$1 has another process" another "$1" "$killed"
	programs | grep -- "^supervise-daemon $1 .*--respawn-max 0 " >/dev/null
}

openrc sysinit
openrc boot
openrc default
touch -d '1 minute ago' /run/openrc/deptree # OpenRC looks for scripts that are newer by a second

step='the commands of the document'
bash -e /trial/commands.sh
for service in cnibox-boot cnibox-watch cnibox-dhcp; do
	rc-service "$service" status
done

step=cnibox-boot
bridge
rc-service cnibox-boot restart
bridge

step=cnibox-dhcp
within 'it answers' cni-exec status lan
comes_back cnibox-dhcp
within 'it answers' cni-exec status lan
rc-service cnibox-dhcp restart
within 'it answers' cni-exec status lan

step=cnibox-watch
cni-exec add --create --ip 10.88.0.5 -p 8080:80 mynet web >/dev/null
cni-exec enter web -- busybox httpd -p 80 -h /srv
within 'the published port' page
nft flush ruleset
within 'the published port after nft flush ruleset' page
comes_back cnibox-watch
nft flush ruleset
within 'the published port after nft flush ruleset' page

step='rc-service cnibox-watch reload'
kill -STOP "$(child cnibox-watch)"
nft flush ruleset
rc-service cnibox-watch reload
page
kill -CONT "$(child cnibox-watch)"
cni-exec check

step=stop
rc-service cnibox-watch stop
nft flush ruleset
if page; then failed 'the port is published still: what is tried then?'; fi
rc-service cnibox-dhcp stop
if cni-exec status lan; then failed 'status needs no daemon: what is tried then?'; fi
rc-service cnibox-boot stop
if programs; then failed 'these are there still'; fi
bridge
openrc
within 'the published port' page
