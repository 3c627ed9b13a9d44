#!/bin/sh
# Before a removal, not before an upgrade: deletes what the package has made in /opt/cni/bin.
set -e
case ${1-} in upgrade | 1) exit 0 ;; esac
from=/usr/lib/cni
to=/opt/cni/bin
for path in "$to"/*; do
	[ -f "$path" ] || [ -L "$path" ] || continue
	if [ "$(readlink "$path")" = "$from/${path##*/}" ] ||
		{ read -r first <"$path" && [ "$first" = "#!$from/cnibox" ]; } 2>/dev/null; then
		rm -f "$path"
	fi
done
rmdir "$to" 2>/dev/null || true
exit 0
