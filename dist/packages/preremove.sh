#!/bin/sh
# Before a removal, not before an upgrade: deletes the links that the package has made in /opt/cni/bin.
set -e
case ${1-} in upgrade | 1) exit 0 ;; esac
from=/usr/lib/cni
to=/opt/cni/bin
for path in "$to"/*; do
	[ "$(readlink "$path")" != "$from/${path##*/}" ] || rm -f "$path"
done
rmdir "$to" 2>/dev/null || true
exit 0
