# Does what Buildroot's golang-package and generic-package do with the variables of the recipe.
set -euo pipefail
hash=$RECIPES/buildroot/package/cnibox/cnibox.hash
cd "$ARCHIVES" && cp "$WORK"/cnibox-*/LICENSE . && sed -n 's/^sha256  //p' "$hash" | sha256sum --quiet -c
make --no-print-directory -f - <<'END'
BR2_EXTERNAL_CNIBOX_PATH = $(RECIPES)/buildroot
BR2_PACKAGE_CNIBOX_TAGS = ""
qstrip = $(strip $(subst ",,$(1)))
INSTALL = install
TARGET_DIR = $(OUT)
KCONFIG_ENABLE_OPT = echo $(1) >>$(WORK)/kernel
golang-package =
include $(BR2_EXTERNAL_CNIBOX_PATH)/external.mk
$(WORK)/cnibox-$(CNIBOX_VERSION)/.stamp:
	cd $(@D) && $(CNIBOX_GO_ENV) go build -ldflags "$(CNIBOX_LDFLAGS)" -modcacherw -tags "$(CNIBOX_TAGS)" -trimpath -buildvcs=false -o $(@D)/bin/cnibox $(CNIBOX_GOMOD)/.
	$(CNIBOX_INSTALL_TARGET_CMDS)
	$(CNIBOX_INSTALL_INIT_SYSTEMD)
	$(CNIBOX_INSTALL_INIT_OPENRC)
	$(CNIBOX_LINUX_CONFIG_FIXUPS)
END
grep -qx CONFIG_NF_TABLES_INET "$WORK/kernel" && grep -qx CONFIG_VETH "$WORK/kernel"
