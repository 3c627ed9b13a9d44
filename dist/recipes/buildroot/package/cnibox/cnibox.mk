################################################################################
#
# cnibox
#
################################################################################

CNIBOX_VERSION = @VERSION@
# It has the modules in vendor: nothing else is fetched.
CNIBOX_SITE = https://github.com/cnibox/cnibox/releases/download/v$(CNIBOX_VERSION)
CNIBOX_LICENSE = Apache-2.0, BSD-3-Clause, MIT
CNIBOX_LICENSE_FILES = LICENSE
CNIBOX_GOMOD = github.com/cnibox/cnibox
CNIBOX_GO_ENV = CGO_ENABLED=0
CNIBOX_TAGS = $(call qstrip,$(BR2_PACKAGE_CNIBOX_TAGS))
CNIBOX_LDFLAGS = -s -w \
	-X github.com/cnibox/cnibox/applets/applet.Version=$(CNIBOX_VERSION) \
	-X github.com/cnibox/cnibox/applets/applet.Commit=@COMMIT@

define CNIBOX_LINUX_CONFIG_FIXUPS
@KERNEL@
endef

define CNIBOX_INSTALL_TARGET_CMDS
	$(MAKE) -C $(@D) install DESTDIR=$(TARGET_DIR) BINDIR=/opt/cni/bin SBINDIR=/usr/sbin DATADIR=
endef

define CNIBOX_INSTALL_INIT_SYSTEMD
	$(foreach unit,$(notdir $(wildcard $(@D)/dist/*.service $(@D)/dist/*.socket)),\
		$(INSTALL) -D -m 0644 $(@D)/dist/$(unit) $(TARGET_DIR)/usr/lib/systemd/system/$(unit)
	)
endef

define CNIBOX_INSTALL_INIT_OPENRC
	$(foreach script,$(basename $(notdir $(wildcard $(@D)/dist/*.openrc))),\
		$(INSTALL) -D -m 0755 $(@D)/dist/$(script).openrc $(TARGET_DIR)/etc/init.d/$(script)
	)
endef

$(eval $(golang-package))
