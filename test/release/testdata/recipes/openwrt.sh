# Does what OpenWrt's package.mk does with the definitions of the Makefile.
set -euo pipefail
export TOPDIR="$WORK/openwrt" INCLUDE_DIR="$WORK/openwrt/include"
mkdir -p "$TOPDIR/include" "$TOPDIR/feeds/packages/lang/golang"
echo 'INSTALL_DIR=install -d -m0755' >"$TOPDIR/rules.mk"
cat >"$TOPDIR/include/package.mk" <<'END'
PKG_BUILD_DIR=$(WORK)/$(PKG_NAME)-$(PKG_VERSION)
define BuildPackage
$(if $(and $(Package/$(1)),$(Package/$(1)/description)),,$(error $(1) is not described))
all:
	echo "$(PKG_HASH)  $(PKG_SOURCE)" | (cd $(ARCHIVES) && sha256sum --quiet -c)
	$(call Build/Compile)
	$(call Package/$(1)/install,$$(OUT))
endef
END
printf '%s\n' "GO_OS:=linux" "GO_ARCH:=$(go env GOARCH)" "GO_BUILD_CACHE_DIR:=$GOCACHE" >"$TOPDIR/feeds/packages/lang/golang/golang-values.mk"
make --no-print-directory -f "$RECIPES/openwrt/cnibox/Makefile" all
