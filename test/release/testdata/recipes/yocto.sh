# Does what BitBake does with the recipe's exports and functions, which are shell except for spaces.
# shellcheck disable=SC1091,SC2034
set -euo pipefail
file=$(echo "$RECIPES"/yocto/recipes-networking/cnibox/cnibox_*.bb)
PV=${file##*/cnibox_} PV=${PV%.bb}
S=$WORK/cnibox-$PV B=$WORK/cnibox-$PV D=$OUT
sbindir=/usr/sbin libexecdir=/usr/libexec datadir=/usr/share systemd_system_unitdir=/usr/lib/systemd/system
TARGET_GOOS=linux TARGET_GOARCH=$(go env GOARCH) TARGET_GOARM='' TARGET_GO386='' TARGET_GOMIPS=''
oe_runmake() { make "$@"; }
has() { sed -n "s,^$1 = \"\(.*\)\",\1,p" "$file" | grep .; }
(cd "$ARCHIVES" && echo "$(has 'SRC_URI\[sha256sum\]')  cnibox-$PV.tar.gz" | sha256sum --quiet -c)
echo "$(has LIC_FILES_CHKSUM | sed 's,^file://LICENSE;md5=,,')  $S/LICENSE" | md5sum --quiet -c
sed -n 's/^\(export [A-Z0-9]*\) = /\1=/p; /^do_.*() {$/,/^}$/p' "$file" >"$WORK/recipe.sh"
cache=$GOCACHE
. "$WORK/recipe.sh"
export GOCACHE="$cache" # its own would be empty
(cd "$B" && do_compile)
(cd "$B" && do_install)
