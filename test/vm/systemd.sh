# Tests what the units of dist do in a guest with systemd, step by step, at the end of each boot. It
# reports to the host on the second serial port; lines that begin with "##vm" are commands for the
# program vm.
set -eEuo pipefail
stty -F /dev/ttyS1 raw
exec 3>/dev/ttyS1 </dev/null
cd /root/cnibox
export HOME=/root

step=boot boot=$(($(cat /trial/boots 2>/dev/null || echo 0) + 1))
echo "$boot" >/trial/boots
sync /trial/boots

# Limit of each wait after a boot, in seconds; event has less. On an emulated processor of a busy
# machine traffic is back after 0.3 to 2.2.
bound=60

say() { printf '%s\n' "boot $boot: $*" >&3; }
now() { echo "${EPOCHREALTIME/[.,]/}"; }
since() { local us=$(($(now) - $1)); printf '%d.%02d s' $((us / 1000000)) $((us / 10000 % 100)); }

# Prints the state after a failure.
failed() {
	trap - ERR
	say "FAIL: $step: $1"
	{
		cni-exec ls -o wide
		cni-exec check
		systemctl --no-pager --failed
		journalctl --no-pager -o short-monotonic -n 90 -u 'cnibox-*' -u nftables -u firewalld -u web -u trial -u 'podman*' -u docker
		nft list ruleset
		ip addr
		ip -n web addr
		podman ps -a
	} >&3 2>&1 || true
	echo '##vm end failed' >&3
	exec 3>&-
	sleep infinity
}
trap 'failed "line $LINENO: $BASH_COMMAND"' ERR

# within WHAT COMMAND...: waits until the command succeeds, and prints how long that took.
within() {
	local what=$1 begin
	shift
	begin=$(now)
	until "$@" >/dev/null 2>&1; do
		[ $(($(now) - begin)) -lt $((bound * 1000000)) ] || failed "not within $bound s: $what"
	done
	say "$step: $what after $(since "$begin")"
}

# A machine on a link of the host, which has no route to other networks.
lan() {
	ip netns add lan
	ip link add lan0 type veth peer name eth0 netns lan
	ip addr add 192.0.2.1/24 dev lan0
	ip link set lan0 up
	ip -n lan addr add 192.0.2.2/24 dev eth0
	ip -n lan link set eth0 up
	ip route add default via 192.0.2.2 # doctor requires a default route
}

# Two servers: web, in a namespace of cnibox-net@web.service, and shop, a container of podman.
declare -A port=([web]=8080 [shop]=8081)
in_web() { ip netns exec web "$@"; }
in_shop() { nsenter --target "$(cat /run/shop.pid)" --net "$@"; }

# fetch SERVER ADDRESS [COMMAND...]: fetches its page; COMMAND enters a namespace.
fetch() {
	local server=$1 address=$2
	shift 2
	[ "$("$@" timeout 4 busybox wget -q -O - "http://$address/")" = "$server" ]
}
own() { fetch web 10.88.0.5; }
publishes() { fetch "$1" "192.0.2.1:${port[$1]}" ip netns exec lan; }
published() { publishes web && publishes shop; }
leaves() { "in_$1" busybox ping -c 1 -W 1 192.0.2.2; }
masqueraded() { leaves web && leaves shop; }
link() {
	local server
	for server in web shop; do
		"in_$server" ip -o -4 addr show dev eth0 scope global
		"in_$server" ip -o link show dev eth0
	done
}

# Opens connections to the published ports and sends half of a request; end_requests sends the rest. Nothing is sent
# between them: where rules are missing for a moment, the host itself answers, with a reset.
declare -A open=()
begin_requests() {
	local server to
	for server in web shop; do
		exec {to}> >(exec ip netns exec lan busybox nc 192.0.2.1 "${port[$server]}" >"/run/$server.page")
		open[$server]=$to
		printf 'GET / HTTP/1.0\r\n' >&"$to"
		within "an open connection to $server" established "$server"
	done
}
established() { "in_$1" ss -Htn state established sport = :80 | grep -q .; }
end_requests() {
	local server to
	for server in web shop; do
		to=${open[$server]}
		printf '\r\n' >&"$to"
		within "the open connection to $server goes on" grep -qx "$server" "/run/$server.page"
		exec {to}>&-
	done
}

# whole: the state is as in the document, and nothing else exists.
whole() {
	cni-exec check &&
		[ "$(cni-exec ls -o json | grep -c '"containerID"')" = 4 ] &&
		[ "$(nft list map inet cnibox dnat4 | grep -c '10.88.0.5')" = 1 ] &&
		[ "$(nft list map inet cnibox dnat4 | grep -c '10.87.0.')" = 1 ] &&
		[ "$(cni-exec ls --networks -o json | tr -d ' \n' | grep -o '"stale":[^]]*]' | sort -u)" = '"stale":[]' ] &&
		[ -z "$(systemctl --failed --plain --no-legend)" ]
}

# event WHAT COMMAND...: after the command traffic works, open connections continue, and addresses are
# the same.
event() {
	local before begin bound=20
	step=$1
	shift
	before=$(link)
	begin_requests
	begin=$(now)
	"$@"
	say "$step: the command took $(since "$begin")"
	within 'traffic to the published ports' published
	within 'traffic to its own address' own
	within 'traffic to the outside' masqueraded
	end_requests
	[ "$(link)" = "$before" ]
	within 'check --all is 0' whole
}

# settled COMMAND...: also waits until firewalld has set its rules. systemctl ends earlier, since
# firewalld takes its bus name before that, and is reloaded by a signal. Its own work takes more than the 20 s of event
# on an emulated processor of a busy machine.
settled() {
	"$@"
	busctl --timeout=60 call org.fedoraproject.FirewallD1 /org/fedoraproject/FirewallD1 org.freedesktop.DBus.Peer Ping
}

# up_took prints how long the process of cnibox-net@web.service took.
up_took() {
	local begin end
	begin=$(systemctl show -P ExecMainStartTimestampMonotonic cnibox-net@web.service)
	end=$(systemctl show -P ExecMainExitTimestampMonotonic cnibox-net@web.service)
	echo "$(((end - begin) / 1000)) ms"
}

back() {
	step=$1
	say "$step: $(uname -r), up for $(cut -d. -f1 /proc/uptime) s"
	lan
	say "$step: cni-exec up took $(up_took)"
	within 'the web server' systemctl is-active web.service
	within 'its own address' own
	within 'the published ports' published
	within 'the outside' leaves web
	within 'check --all is 0' whole
}

# start_shop starts a container of podman, which podman-restart.service restarts at each boot.
start_shop() {
	step='podman' began=$(now)
	podman load -q -i /trial/shop.tar >/dev/null
	podman run -d --name shop --pull never --restart always --pidfile /run/shop.pid -p "${port[shop]}:80" localhost/shop:1 >/dev/null
	systemctl enable podman-restart.service
	say "$step $(podman version -f '{{.Client.Version}}'): load and run took $(since "$began")"
}

# restart_docker starts or restarts Docker, which sets FORWARD to drop only if it also enables forwarding.
restart_docker() {
	sysctl -qw net.ipv4.ip_forward=0
	systemctl restart docker.service
	nft list chain ip filter FORWARD | grep -q 'policy drop'
	nft list chain ip filter FORWARD | grep -q 'jump DOCKER-USER'
}

# docker_beside_firewalld: Docker adds a zone and reloads firewalld, which deletes the rules of iptables. The
# watch is stopped until then, since it would enable forwarding before Docker does.
docker_beside_firewalld() {
	systemctl stop cnibox-watch.service
	restart_docker
	if publishes web || publishes shop; then failed 'FORWARD lets it through: what is tried then?'; fi
	systemctl start cnibox-watch.service
}

# sound: cni-exec doctor has no finding.
sound() {
	local found
	found=$(cni-exec doctor 2>&1) || failed "$found"
	grep -q 'checks, 0 findings' <<<"$found" || failed "$found"
}

# repair PROGRAM: runs the commands that cni-exec doctor prints, which begin with PROGRAM.
repair() {
	local found commands
	found=$(cni-exec doctor || true)
	commands=$(grep -o "$1 .*" <<<"$found") || failed "no command of $1: $found"
	bash -ec "$commands"
}

# finish WORD COMMAND...: reports how this boot ends, and ends it by the command.
finish() {
	echo "##vm end $1" >&3
	exec 3>&-
	shift
	exec "$@"
}

case $boot in
1)
	systemctl enable --now nftables.service
	bash -e /trial/units.sh
	step='systemd-analyze verify'
	complaints=$(systemd-analyze verify --man=no dist/*.service dist/*.socket 2>&1) || failed "$complaints"
	[ -z "$complaints" ] || failed "$complaints"
	systemctl enable --now web.service
	start_shop
	back 'units enabled'
	event 'systemctl reload nftables' systemctl reload nftables
	event 'systemctl restart nftables' systemctl restart nftables
	event 'systemctl stop and start nftables' sh -c 'systemctl stop nftables && systemctl start nftables'
	finish reboot systemctl reboot
	;;
2)
	back 'reboot'
	event 'systemctl start docker' restart_docker
	step='cni-exec doctor'
	sound
	event 'systemctl restart nftables, with Docker' systemctl restart nftables
	event 'systemctl restart docker' restart_docker
	step='without CNI-FORWARD'
	nft flush chain ip filter CNI-FORWARD
	if leaves web || leaves shop || publishes web || publishes shop; then failed 'FORWARD lets it through still: what is tried then?'; fi
	cni-exec doctor && failed 'cni-exec doctor has no finding'
	cni-exec reload
	within 'traffic to the published ports' published
	within 'traffic to the outside' masqueraded
	systemctl stop docker.service docker.socket containerd.service
	step='without a unit that restores'
	systemctl disable --now cnibox-reload@nftables.service
	nft flush ruleset
	if publishes web || publishes shop; then failed 'a port is published still: what is tried then?'; fi
	step='cnibox-watch.service'
	systemctl enable --now cnibox-watch.service
	within 'traffic to the published ports' published
	event 'nft flush ruleset' nft flush ruleset
	event 'ip link del br-mynet' ip link del br-mynet
	event 'systemctl reload nftables, watched' systemctl reload nftables
	say "cnibox-watch.service: $(grep VmRSS "/proc/$(systemctl show -P MainPID cnibox-watch.service)/status" | tr -s '\t ' ' ')"
	# After the cut, synced attachments are stale, and later ones are lost.
	cni-exec add --create mynet late >/dev/null
	sync
	cni-exec add --create mynet later >/dev/null
	finish cut sleep infinity
	;;
3)
	back 'power cut'
	event 'nft flush ruleset' nft flush ruleset
	step='systemctl restart cnibox-net@web.service'
	systemctl restart cnibox-net@web.service # and with it the service, which requires it
	within 'its own address' own
	within 'the published ports' published
	within 'check --all is 0' whole
	step='cni-exec gc'
	cni-exec gc
	within 'check --all is 0' whole
	step='systemctl stop web.service cnibox-net@web.service'
	systemctl stop web.service cnibox-net@web.service
	[ ! -e /run/netns/web ]
	[ -z "$(compgen -G '/var/lib/cni/networks/mynet/10.*' || true)" ]
	step='firewalld instead of nftables'
	systemctl disable nftables.service cnibox-watch.service
	systemctl enable firewalld.service cnibox-reload@nftables.service cnibox-reload@firewalld.service
	sed -i 's/"firewall"/&, "backend": "firewalld"/' /etc/cni/net.d/*.conflist
	finish reboot systemctl reboot
	;;
4)
	back 'reboot with firewalld'
	step='cni-exec doctor'
	sound
	event 'systemctl reload firewalld' settled systemctl reload firewalld
	event 'systemctl restart firewalld' settled systemctl restart firewalld
	step='firewalld without a unit that restores'
	systemctl disable --now cnibox-reload@firewalld.service
	settled systemctl reload firewalld
	if leaves web || leaves shop; then failed 'firewalld lets it through still: what is tried then?'; fi
	step='cnibox-watch.service'
	systemctl enable --now cnibox-watch.service
	within 'traffic to the outside' masqueraded
	event 'firewall-cmd --reload, watched' firewall-cmd --reload
	event 'systemctl restart firewalld, watched' settled systemctl restart firewalld
	step='the command of cni-exec doctor'
	sed -i 's/, "backend": "firewalld"//' /etc/cni/net.d/{mynet,87-podman-bridge}.conflist
	systemctl restart cnibox-net@web.service
	podman restart -t 0 shop
	if leaves web || leaves shop; then failed 'firewalld lets it through still: what is tried then?'; fi
	repair firewall-cmd
	within 'the outside' masqueraded
	sound
	event 'systemctl start docker, with firewalld' docker_beside_firewalld
	step='cni-exec doctor, with firewalld and Docker'
	found=$(cni-exec doctor || true)
	grep 'db (backend): .*dropped by .*chain FORWARD of table ip filter' <<<"$found" || failed "no finding: $found"
	repair 'nft insert rule'
	sound
	event 'systemctl reload firewalld, with Docker' settled systemctl reload firewalld
	finish done sleep infinity
	;;
esac
