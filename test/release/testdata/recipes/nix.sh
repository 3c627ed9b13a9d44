# Does what stdenv.mkDerivation does: make with makeFlags, and buildFlags or install. Its arguments
# are stubs, and $out is a directory.
set -euo pipefail
nix-instantiate --parse "$RECIPES/nix/package.nix" >/dev/null
evaluate() { nix-instantiate --eval --strict --store dummy:// -E "$1" | tr -d '"' | sed "s,$out,$OUT,g"; }
value() {
	evaluate "let d = import $RECIPES/nix/package.nix {
		lib = { licenses.asl20 = 1; platforms.linux = 1; };
		stdenv.mkDerivation = d: d;
		fetchurl = f: f;
		go = { GOOS = \"linux\"; GOARCH = \"$(go env GOARCH)\"; };
	}; in toString d.$1"
}
out=none out=$(evaluate 'placeholder "out"')
cd "$WORK/$(value pname)-$(value version)"
(cd "$ARCHIVES" && echo "$(value src.sha256)  $(basename "$(value src.url)")" | sha256sum --quiet -c)
GOOS=$(value GOOS) GOARCH=$(value GOARCH) GOTOOLCHAIN=$(value GOTOOLCHAIN) flags=$(value makeFlags)
export GOOS GOARCH GOTOOLCHAIN
# shellcheck disable=SC2086,SC2046
make $flags $(value buildFlags) && make $flags install
