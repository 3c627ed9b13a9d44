# For callPackage: pkgs.callPackage ./package.nix { go = pkgs.go_1_26; }
{ lib, stdenv, fetchurl, go }:

stdenv.mkDerivation rec {
  pname = "cnibox";
  version = "@VERSION@";

  # It has the modules in vendor: nothing else is fetched.
  src = fetchurl {
    url = "https://github.com/cnibox/cnibox/releases/download/v${version}/cnibox-${version}.tar.gz";
    sha256 = "@SHA256@";
  };

  nativeBuildInputs = [ go ];
  inherit (go) GOOS GOARCH;
  GOTOOLCHAIN = "local";
  preBuild = "export GOCACHE=$TMPDIR/go-cache";

  buildFlags = [ "build" ];
  makeFlags = [
    "VERSION=${version}"
    "COMMIT=@COMMIT@"
    "BINDIR=${placeholder "out"}/bin"
    "SBINDIR=${placeholder "out"}/bin"
    "DATADIR=${placeholder "out"}/share"
    "UNITDIR=${placeholder "out"}/lib/systemd/system"
  ];
  dontStrip = true; # it is

  meta = {
    description = "CNI plugins and their runtime in one static binary";
    homepage = "https://github.com/cnibox/cnibox";
    license = with lib.licenses; [ asl20 bsd3 mit ];
    platforms = lib.platforms.linux;
    mainProgram = "cni-exec";
  };
}
