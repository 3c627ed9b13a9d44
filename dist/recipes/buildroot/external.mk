include $(sort $(wildcard $(BR2_EXTERNAL_CNIBOX_PATH)/package/*/*.mk))
