#!/bin/busybox sh
# The first process of a guest with only busybox and cnibox: runs the document's commands, prints
# them and their output on the second serial port, and checks that nothing is left.
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s
export PATH=/usr/sbin:/usr/bin HOME=/root
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=0755 run /run
mount -t tmpfs -o mode=1777 tmp /tmp
stty -F /dev/ttyS1 raw
exec 3>/dev/ttyS1 </dev/null
modprobe -a $(cat /etc/modules)
ip link set lo up
hostname box
echo box >/etc/hostname
cd /root

end() {
	echo "##vm end $1" >&3
	sleep 1000000
}
sh -ex /etc/tour >&3 2>&1 || end failed
cni-exec rm mynet
cni-exec rm backend
left=$(ls /run/netns; cni-exec ls -o json | grep containerID; ls /sys/class/net | grep -vxE 'lo|eth0|bonding_masters|ifb[01]|dummy0|tunl0|sit0')
if [ -n "$left" ]; then
	echo "left: $left" >&3
	end failed
fi
end done
