#!/bin/busybox sh
# The first process of a guest: runs the tests of each package in its directory and reports to the
# host on the second serial port, to which no kernel message goes. Lines that begin with "##vm" are
# this script's own.
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s 2>/dev/null # what is there already stays
export PATH=/usr/sbin:/usr/bin HOME=/root TMPDIR=/tmp CNIBOX_KERNEL=require CNIBOX_LANE
read -r CNIBOX_LANE </etc/lane
[ ! -d /usr/lib/cni-newest ] || export CNIBOX_TWIN_NEWEST=/usr/lib/cni-newest
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=0755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir -p /dev/pts /dev/shm /dev/net /run/netns /run/lock /var/lib/cni /var/lib/misc
mount -t devpts devpts /dev/pts
mknod /dev/net/tun c 10 200 # opening it loads the module
stty -F /dev/ttyS1 raw
exec 3>/dev/ttyS1

modprobe -a $(cat /etc/modules)
ip link set lo up
for nic in /sys/bus/virtio/devices/*/net/*; do # tests may have it
	[ -e "$nic" ] && export CNIBOX_NIC=${nic##*/}
done
echo "##vm boot $(uname -r)" >&3
IFS='
' # one flag a line, as it is
set -f
set -- $(cat /etc/flags)
set +f
unset IFS
while read -r path dir; do
	cd "/src/$dir"
	echo "##vm run $path" >&3
	"/tests/$path.test" "$@" </dev/null >&3 2>&1 3>&-
	echo "##vm exit $path $?" >&3
done </etc/suites
echo "##vm done" >&3
exec 3>&- # waits until all is written
poweroff -f
