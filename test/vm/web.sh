#!/bin/busybox sh
# The first process of a guest of the trials of test/clients. Its network card has the address ADDR of the kernel's
# command line, and GATEWAY is its gateway. It serves /www, fetches a page for who asks /cgi-bin/fetch?IP:PORT, and
# ends at /cgi-bin/off.
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s
export PATH=/usr/sbin:/usr/bin HOME=/root
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
modprobe -a virtio_pci virtio_net
ip link set lo up
ip address add "$ADDR" dev eth0
ip link set eth0 up
ip route add default via "$GATEWAY"
exec httpd -f -p 80 -h /www
