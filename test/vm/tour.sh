# What the example's /init runs in a guest, as /etc/rc.local: checks what that has attached, runs the document's commands, prints
# them and their output on the second serial port, and checks that nothing is left.
mount -t tmpfs -o mode=1777 tmp /tmp
stty -F /dev/ttyS1 raw
exec 3>/dev/ttyS1 </dev/null
hostname box
cd /root

end() {
	echo "##vm end $1" >&3
	sleep 1000000
}

# What the example serves, and that it ends.
cat >/tmp/example <<'EOF'
[ "$(wget -q -O - http://10.90.0.1:8080/)" = "hello from web" ]
killall httpd
cni-exec down /etc/namespaces.json
EOF
sh -ex /tmp/example >&3 2>&1 || end failed

# A run works in 16 MB, among which its program counts, which is in a file system of memory there.
cat >/tmp/small <<'EOF'
mkdir /run/cgroup /run/small
mount -t cgroup2 cgroup /run/cgroup
mount -t tmpfs small /run/small
echo +memory >/run/cgroup/cgroup.subtree_control
mkdir /run/cgroup/small
echo 16M >/run/cgroup/small/memory.max
sh -ec 'echo $$ >/run/cgroup/small/cgroup.procs; cp /opt/cni/bin/cnibox /run/small/cni-exec; /run/small/cni-exec run --net edge -- ip -4 addr show eth0'
cat /run/cgroup/small/memory.events
grep -qx 'oom_kill 0' /run/cgroup/small/memory.events
cni-exec rm edge
EOF
sh -ex /tmp/small >&3 2>&1 || end failed

# A server may have been started, and not listen yet.
rm -f /usr/bin/wget # a link to busybox
printf '#!/bin/sh\nuntil busybox wget "$@"; do sleep 1; done\n' >/usr/bin/wget && chmod 755 /usr/bin/wget
sh -ex /etc/tour >&3 2>&1 || end failed
cni-exec rm mynet
cni-exec rm backend
left=$(ls /run/netns; cni-exec ls -o json | grep containerID; ls /sys/class/net | grep -vxE 'lo|eth0|bonding_masters|ifb[01]|dummy0|tunl0|sit0')
if [ -n "$left" ]; then
	echo "left: $left" >&3
	end failed
fi
end done
