# Does what abuild does with an APKBUILD: verifies the archive's checksum, builds and packages.
# shellcheck disable=SC1091,SC2034,SC2154
set -euo pipefail
srcdir=$WORK pkgdir=$OUT
. "$RECIPES/alpine/APKBUILD"
(cd "$ARCHIVES" && echo "$sha512sums" | sed '/^$/d' | sha512sum --quiet -c)
[ "$source" = "$url/releases/download/v$pkgver/cnibox-$pkgver.tar.gz" ]
cd "$srcdir/cnibox-$pkgver"
(build)
(package)
