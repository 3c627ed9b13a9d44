# cnibox: every CNI plugin and the runtime cni-exec in one static binary.
# `make` or `make help` lists the targets.

BIN     ?= bin/cnibox
BINDIR  ?= /opt/cni/bin
PREFIX  ?= /usr/local
SBINDIR ?= $(PREFIX)/sbin
DATADIR ?= $(PREFIX)/share
MANDIR  ?= $(DATADIR)/man
# Where systemd's units go, with the paths of $(BINDIR) in them; empty: nowhere. Nothing is enabled.
UNITDIR ?=
DESTDIR ?=
# The version is the tag's; between tags it is that of the next release, and names the commit.
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
VERSION ?= $(or $(shell git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null | sed 's/^v//'),0.2.0-dev$(addprefix +,$(COMMIT)))
GO      ?= go
FUZZTIME ?= 1m
# Kernel tests wait for the kernel and for servers more than they compute.
PARALLEL ?= 8
# How long the tests of one package may take, on a busy machine.
LIMIT ?= 30m

# Tests compare with nft and tc, which Debian does not have in the PATH of an ordinary user.
export PATH := $(PATH):/usr/sbin:/sbin

export CGO_ENABLED = 0
# Routers with MIPS have no floating point unit.
export GOMIPS ?= softfloat
# Without paths of this directory go's cache serves every checkout, and the tests share with
# the product what is compiled.
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

MODULE := $(word 2,$(file < go.mod))

# The test module drives the product from outside. Its programs run in its directory. With both modules in a workspace
# what they share is compiled once; the product itself is built by its own go.mod alone.
BOTH := env GOWORK='$(CURDIR)/test/both.work'
IN_TEST := $(BOTH) $(GO) run -C test
BUILDFLAGS = -trimpath -ldflags '-s -w -X $(MODULE)/applets/applet.Version=$(VERSION) -X $(MODULE)/applets/applet.Commit=$(COMMIT)'

# What build-all makes: the names of Go, but for the two kinds of 32 bit ARM.
ARCHES := amd64 arm64 armv7 armv6 386 riscv64 mips mipsle mips64le ppc64le s390x loong64

# The plugins, and the tags that leave each out, and the runtime: no_host_local, ...
PLUGINS := $(filter-out cnibox cni-exec,$(shell cat testdata/applets.golden))
NO_TAGS := $(addprefix no_,$(subst -,_,cni-exec $(PLUGINS)))
K3S := bandwidth bridge firewall flannel host_local loopback portmap
empty :=
comma := ,
ALL_TAGS := $(subst $(empty) $(empty),$(comma),$(NO_TAGS))

.PHONY: help build build-all reference sizes lint vuln image-sizes quick test test-tags test-race test-upgrade test-cross test-twin test-vm test-clients test-nodes flanneld fuzz base bench bench-vm numbers numbers-base demo install uninstall clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

# TAGS leave parts out: TAGS="no_dhcp no_flannel". ONLY keeps some: ONLY="bridge host-local loopback cni-exec". A PROFILE
# is a name for that: the seven plugins of k3s, what podman's networks need, and the runtime with what a small node needs.
PROFILE_k3s := $(K3S)
PROFILE_podman := bridge dhcp firewall host_local ipvlan loopback macvlan netavark portmap static tuning vlan
PROFILE_edge := cni_exec bandwidth bridge firewall host_local loopback portmap ptp static tuning
ONLY ?= $(if $(PROFILE),$(or $(PROFILE_$(PROFILE)),$(error PROFILE is k3s, podman or edge)))
only = $(addprefix no_,$(subst -,_,$(1)))
TAGS ?= $(if $(ONLY),$(if $(filter-out $(NO_TAGS),$(call only,$(ONLY))),$(error ONLY has a name that is neither cni-exec nor one of $(PLUGINS)))$(filter-out $(call only,$(ONLY)),$(NO_TAGS)))

# What the binary has, and make install therefore makes a file for.
INSTALLED = $(foreach name,cni-exec $(PLUGINS),$(if $(filter $(call only,$(name)),$(TAGS)),,$(name)))

# The binary is whole at any time, also where another make uses or builds it.
build: ## build $(BIN) and its manual pages; ONLY="bridge host-local cni-exec", PROFILE=k3s, podman or edge, or TAGS="no_dhcp no_flannel" leave plugins out
	$(GO) build $(if $(TAGS),-tags '$(TAGS)') $(BUILDFLAGS) -o $(BIN).$$$$ . && mv -f $(BIN).$$$$ $(BIN)
	$(if $(MAN),$(WRITE_PAGES))

# Manual pages are written by a program for this machine, from what the help is written from. They are
# beside the binary; MAN= leaves them out.
MAN ?= $(BIN)-man
WRITE_PAGES = GOOS= GOARCH= GOARM= GO386= $(GO) run $(if $(TAGS),-tags '$(TAGS)') $(BUILDFLAGS) ./dist/man "$(MAN)"

build-all: $(addprefix build-,$(ARCHES)) ## build for each architecture, into bin/cnibox-ARCH

build-%:
	GOARCH=$(if $(filter armv%,$*),arm,$*) GOARM=$(patsubst armv%,%,$(filter armv%,$*)) \
		$(MAKE) --no-print-directory -s build BIN=bin/cnibox-$* MAN=

# -l: without inlining, each function of ours is a frame.
.PHONY: walk
walk: ## the functions and frames of ours that a call enters; needs strace
	@$(GO) build -cover -coverpkg=./... -o bin/cnibox-cover . && $(GO) build -gcflags='./...=-l' -o bin/cnibox-plain .
	@$(IN_TEST) ./walk -cover $(CURDIR)/bin/cnibox-cover -plain $(CURDIR)/bin/cnibox-plain

# Prints the last table of docs/numbers.md: what cni-exec and each plugin add to the binary, which is
# what leaving out this one alone saves. What several share counts for none.
sizes: build ## the bytes of the binary that cni-exec and each plugin take
	@size() { $(GO) build -tags "$$1" $(BUILDFLAGS) -o $(BIN).part . && stat -c %s $(BIN).part; }; \
	all=$$(stat -c %s $(BIN)); printf '| %-12s | %9s |\n' plugin bytes '---' '--:'; \
	for tag in $(NO_TAGS); do \
		printf '| %-12s | %9d |\n' "$$(echo $${tag#no_} | tr _ -)" $$((all - $$(size $$tag))); \
	done | sort -t'|' -k3nr; \
	printf '| %-12s | %9d |\n' 'none of them' $$(size $(ALL_TAGS)) "k3s's seven" $$(size $(subst $(empty) $(empty),$(comma),$(filter-out $(addprefix no_,$(K3S)),$(NO_TAGS)))) all $$all; rm -f $(BIN).part

# Prints the table of docs/operations.md.
image-sizes: ## the bytes of sets of plugins for an image, as they are and compressed
	@printf '| %-52s | %9s | %9s | %9s |\n' 'set' bytes 'gzip -9' 'xz -9e' '---' '--:' '--:' '--:'; \
	for set in '' PROFILE=podman PROFILE=edge PROFILE=k3s 'ONLY="bridge host-local loopback cni-exec"' 'ONLY="bridge host-local loopback"'; do \
		eval "$(MAKE) --no-print-directory -s build BIN=$(BIN).part MAN= $$set" || exit 1; \
		printf '| %-52s | %9d | %9d | %9d |\n' "\`$${set:-all}\`" "$$(stat -c %s $(BIN).part)" "$$(gzip -9 -c $(BIN).part | wc -c)" "$$(xz -9e -c $(BIN).part | wc -c)"; \
	done; rm -f $(BIN).part

# A second run takes the programs, and what staticcheck found, from caches. Imports and names that are forbidden are a test
# of the root package. An error that is compared as such and not as what it wraps is one of type any there.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ERRORLINT := github.com/polyfloyd/go-errorlint@v1.8.0
INEFFASSIGN := github.com/gordonklaus/ineffassign@v0.2.0

.PHONY: lint-programs fix
lint: ## gofmt, staticcheck, assignments without effect, and errors compared, asserted or wrapped as if none were wrapped
	@out=$$(gofmt -l .); [ -z "$$out" ] || { echo "gofmt -w: $$out"; exit 1; }
	@$(BOTH) $(GO) run $(STATICCHECK) ./... ./test/...
	@$(BOTH) $(GO) run $(ERRORLINT) -errorf ./... ./test/...
	@$(BOTH) $(GO) run $(INEFFASSIGN) ./... ./test/...

lint-programs:
	@$(GO) run $(STATICCHECK) -version && $(GO) run $(ERRORLINT) -V=full && $(GO) run $(INEFFASSIGN) -version

# A text of a few parts is put together by +=.
fix: ## what the standard library has already, as go fix would write it; changes nothing
	@$(BOTH) $(GO) fix -diff -stringsbuilder=false ./... ./test/...

# VULNDB may be a local copy of the database: file:///DIRECTORY. Status 3 is a finding.
VULN := golang.org/x/vuln/cmd/govulncheck@v1.9.0
VULNDB ?= https://vuln.go.dev

vuln: ## known vulnerabilities in what the binary calls, by govulncheck; VULNDB=file:///DIRECTORY: offline
	@out=$$($(GO) run $(VULN) $(or $(VULNARGS),-db $(VULNDB) ./...) 2>&1); status=$$?; \
	case $$status:$$out in \
		0:*) printf '%s\n' "$$out" ;; \
		*"fetching vulnerabilities: "*) printf 'SKIPPED: govulncheck: %s\n' "$$(printf '%s\n' "$$out" | sed -n 's/.*fetching vulnerabilities: //p')" ;; \
		*) printf '%s\n' "$$out"; exit 1 ;; \
	esac

plugin: ## lay out the places of a new plugin (NAME=stub, CHAINED=1 for one that works on the interface of another)
	@$(IN_TEST) ./plugin -name '$(NAME)' $(if $(CHAINED),-chained) $(CURDIR)

.PHONY: modules
modules: # fetched
	@$(BOTH) $(GO) list -deps -test ./... ./test/... >/dev/null

quick: ## the tests that need no privilege, in seconds
	@$(BOTH) $(GO) vet ./... ./test/... && $(BOTH) $(GO) test -short -skip '^TestKernel' ./... ./test/...

# The programs that run tests. gotest runs those of both modules and prints failures when they happen; privileged
# runs each package's with namespaces and temporary directories of their own.
TOOLS := $(CURDIR)/bin/tools
GOTEST = $(BOTH) '$(TOOLS)/gotest'
WITH_PRIVILEGE = -exec "env -u GOWORK '$(TOOLS)/privileged'"

.PHONY: tools
tools:
	@new='$(TOOLS)'.$$$$; $(BOTH) $(GO) build -C test -o $$new/ ./gotest ./privileged && mkdir -p '$(TOOLS)' && mv -f $$new/* '$(TOOLS)' && \
		rmdir $$new && '$(TOOLS)/privileged' true

test test-race test-upgrade test-twin test-cross: tools

# Nothing is taken from go's cache: tests look at the kernel, and go would look at every
# file in /proc/sys that one of them has read, for minutes. The packages of the product are tested beside those of
# the test module, which wait more than they compute. TESTFLAGS are go's: TESTFLAGS='-shuffle=on -count=5'.
TEST_FLAGS = $(WITH_PRIVILEGE) -count=1 -vet=off -parallel $(PARALLEL) -timeout $(LIMIT) $(if $(RUN),-run '$(RUN)') $(TESTFLAGS)

# Without root all packages share a user namespace: programs of one look for namespaces, and must be able to look into
# those of another. It has no network: what go needs is fetched before, by vet, or by list for a part.
ONE_USERNS = $(if $(filter-out 0,$(shell id -u)),'$(TOOLS)/privileged' --user)

# The tests that this kernel cannot run, for test-vm LACKS=1.
LACKING := $(CURDIR)/bin/lacks
test: export CNIBOX_LACKS = $(if $(PKG)$(RUN),,$(LACKING))

# What random and large inputs find, a kill at each change and the scripts of tools with plugins started, they find in the
# long lane: FULL=1.
test: export CNIBOX_FULL = $(FULL)

test: ## all tests, and what this kernel lacks; without root in a user namespace; PKG=./nft,./test/e2e RUN=regexp: a part; FULL=1: also what takes long, and the parsers fuzzed
	$(if $(PKG),$(if $(ONE_USERNS),@$(MAKE) --no-print-directory modules),$(BOTH) $(GO) vet ./... ./test/...)
	@if git cat-file -e '$(BASE)^{commit}' 2>/dev/null; then $(MAKE) --no-print-directory -s base BASE=$(BASE) || \
		{ echo "FAIL: revision $(BASE), to upgrade from, was not built"; exit 1; }; \
	else echo "SKIPPED: the upgrade from an earlier revision: git has no $(BASE) here"; fi
	$(if $(PKG)$(RUN),,@: >$(LACKING))
	@from='$(BASE_BIN)'; [ ! -e "$$from" ] || export CNIBOX_UPGRADE_FROM="$$from"; $(ONE_USERNS) $(GOTEST) $(if $(PKG),-pkg '$(PKG)') -- $(TEST_FLAGS)
	$(if $(PKG),,$(MAKE) --no-print-directory test-tags)
	$(if $(FULL),$(MAKE) --no-print-directory fuzz FUZZTIME=10000x)

# list -export compiles; vet would look anew, for each tag, at all that is imported.
test-tags: ## compile without each plugin; compile tests, build and test without any
	@printf '%s\n' $(NO_TAGS) | xargs -P 2 -I TAG $(GO) list -export -tags TAG . >/dev/null
	@$(BOTH) $(GO) list -test -export -tags $(ALL_TAGS) . ./test/... >/dev/null && $(GO) build -o /dev/null -tags $(ALL_TAGS) .
	@$(GO) test -short -vet=off -tags $(ALL_TAGS) -run 'TestApplets' . ./applets

# The packages of the product that start goroutines, in their tests or not; each would wait a second at its end for
# races of others. SCRIPTS=1: the scripts as well, whose programs have the race detector.
RACE_PKGS = $(sort $(dir $(shell grep -rlE --include='*.go' --exclude-dir=test '^[[:blank:]]+go [[:alpha:]]|[.]Go\>' .)))

test-race: export CGO_ENABLED = 1
test-race: export CNIBOX_LANE = race
test-race: export GORACE = atexit_sleep_ms=0
test-race: ## the tests of packages that start goroutines with the race detector, which needs gcc; SCRIPTS=1: the scripts as well
	@$(GOTEST) -log bin/test-race.log -pkg '$(RACE_PKGS) $(if $(SCRIPTS),./test/script)' -- -race -short $(TEST_FLAGS)

# The newest reference plugins, 18 programs, are built where go's own cache is; what they
# need comes from the module proxy and is in no go.mod of ours.
NEWEST := v1.9.1
NEWEST_DIR = $(shell $(GO) env GOCACHE)/cnibox-reference-$(NEWEST)
NEWEST_PLUGINS := $(addprefix main/,bridge host-device ipvlan loopback macvlan ptp vlan dummy tap) \
	$(addprefix ipam/,dhcp host-local static) $(addprefix meta/,bandwidth firewall portmap sbr tuning vrf)

# The release before this one, whose attachments this one must go on with: the newest tag behind HEAD or, while
# there is none, 0.1.0. Where git does not have it, as in an archive, `make test` skips that and says so.
RELEASE_BEFORE ?= $(or $(shell git describe --tags --abbrev=0 --match 'v[0-9]*' HEAD^ 2>/dev/null),108c417)

test test-upgrade base: BASE = $(RELEASE_BEFORE)

test-upgrade: ## attach with the binary of the release before (BASE=REVISION: of another one), go on with this one
	@$(MAKE) --no-print-directory -s base BASE=$(BASE)
	CNIBOX_UPGRADE_FROM=$(BASE_BIN) $(GOTEST) -pkg ./test/upgrade -- $(TEST_FLAGS) -run '^TestKernelUpgrade$$'

reference: ## build the newest reference plugins, for test-twin LIVE=1 and RECORD=1, and to measure
	@[ -e $(NEWEST_DIR)/.done ] || { GOBIN=$(NEWEST_DIR) $(GO) install -trimpath -ldflags '-s -w' \
		$(foreach p,$(NEWEST_PLUGINS),github.com/containernetworking/plugins/plugins/$p@$(NEWEST)) && touch $(NEWEST_DIR)/.done; }
	@echo $(NEWEST_DIR)

# What the reference does is recorded in test/twin/testdata/recorded, with which make test compares. LIVE and RECORD run it.
TWIN_LIVE = $(if $(LIVE)$(RECORD),$(NEWEST_DIR))
TWIN_RUN = ^TestKernelTwin$(if $(RECORD),Record,$(if $(LIVE),$(if $(KERNEL),Live,(Live|Leases))))$$
test-twin: export CNIBOX_TWIN_NEWEST = $(TWIN_LIVE)

test-twin: $(if $(LIVE)$(RECORD),reference) ## the plugins against the recorded answers of the newest reference; LIVE=1: against itself; RECORD=1: record them; KERNEL=6.1: in qemu, for what is lacking here
	$(if $(KERNEL),$(IN_TEST) ./vm -kernel $(KERNEL) -pkg ./test/twin -run '$(TWIN_RUN)' $(VMFLAGS) $(if $(RECORD),-v >$(TWIN_LOG) || { sed '/recorded: /d' $(TWIN_LOG) | tail -n 40; exit 1; }),$(GOTEST) -log bin/test-twin.log -pkg ./test/twin -- $(TEST_FLAGS) -run '$(TWIN_RUN)')
	$(if $(and $(KERNEL),$(RECORD)),CNIBOX_TWIN_GUEST=$(TWIN_LOG) $(GO) test -C test -count=1 -run '$(TWIN_RUN)' ./twin && rm $(TWIN_LOG))

# What a guest prints, which cannot write here.
TWIN_LOG = $(CURDIR)/bin/twin-$(KERNEL).log

test-vm: ## the kernel tests on Debian's kernels, in qemu; KERNEL=6.1 PKG=./nft,./test/e2e RUN=regexp: less; LACKS=1: what make test could not run on this kernel
	$(IN_TEST) ./vm $(if $(LACKS),-lacks $(LACKING)) $(if $(KERNEL),-kernel $(KERNEL)) $(if $(PKG),-pkg $(PKG)) $(if $(RUN),-run '$(RUN)') $(VMFLAGS)

guest-kernel: ## fetch a kernel for test-vm (KERNEL=6.1), which otherwise does so itself
	$(IN_TEST) ./vm $(if $(KERNEL),-kernel $(KERNEL)) -fetch

# Unit tests as other machines run them, under qemu-user: 64 bits, big endian, and both
# big endian and 32 bits.
EMULATED := arm64:aarch64 s390x:s390x mips:mips
CROSS_PKGS := ./spec ./internal/nlconn ./internal/dbus ./internal/flock ./rtnl ./nft ./ipam/... ./applets/...

test-cross: export CNIBOX_LANE = cross
test-cross: ## unit tests on other architectures, emulated by qemu-user
	@for arch in $(EMULATED); do \
		qemu=qemu-$$(echo $$arch | cut -d: -f2)-static; arch=$${arch%:*}; \
		command -v $$qemu >/dev/null || { echo "SKIPPED: $$arch: there is no $$qemu"; continue; }; \
		echo "cross: $$arch"; \
		GOARCH=$$arch $(GOTEST) -log bin/test-cross.log -pkg '$(CROSS_PKGS)' -- -short -vet=off -timeout $(LIMIT) -exec $$qemu -skip '^TestKernel' || exit 1; \
	done

# containerd 2, BuildKit and nerdctl are built once, in some four minutes on two cores, where go's own cache is; what is
# built in part is taken up again.
RUNTIMES := test/runtimes test/runtimes/nerdctl
RUNTIMES_DIR = $(shell $(GO) env GOCACHE)/cnibox-runtimes-$(firstword $(shell cat $(RUNTIMES:=/go.mod) | cksum))
.PHONY: runtimes

runtimes: ## build containerd 2, BuildKit, nerdctl and cnitool, for test-clients
	@[ -e $(RUNTIMES_DIR)/.done ] || { mkdir -p $(RUNTIMES_DIR) && for module in $(RUNTIMES); do \
		$(GO) build -C $$module -trimpath -ldflags '-s -w' -o $(RUNTIMES_DIR)/ tool || exit 1; done && touch $(RUNTIMES_DIR)/.done; }
	@[ -e $(RUNTIMES_DIR)/cnitool ] || $(GO) build -C test -trimpath -ldflags '-s -w' -o $(RUNTIMES_DIR)/ github.com/containernetworking/cni/cnitool
	@echo $(RUNTIMES_DIR)

# What needs gcc, and takes longer than continuous integration has. pinns is CRI-O's, in C.
.PHONY: crio nomad
crio: ## build CRI-O, for test-clients; needs gcc
	@[ -e $(RUNTIMES_DIR)/pinns ] || { CGO_ENABLED=1 $(GO) build -C test/runtimes/crio -trimpath -ldflags '-s -w' -o $(RUNTIMES_DIR)/ \
		-tags 'containers_image_ostree_stub containers_image_openpgp exclude_graphdriver_btrfs' tool && \
		$(or $(CC),cc) -O2 -static -o $(RUNTIMES_DIR)/pinns "$$($(GO) list -C test/runtimes/crio -m -f '{{.Dir}}' github.com/cri-o/cri-o)"/pinns/src/*.c; }
	@echo $(RUNTIMES_DIR)

nomad: ## build Nomad 1.6, the last with an open source licence, for test-clients; needs gcc
	@[ -e $(RUNTIMES_DIR)/nomad ] || CGO_ENABLED=1 $(GO) build -C test/runtimes/nomad -trimpath -ldflags '-s -w' -o $(RUNTIMES_DIR)/ tool
	@echo $(RUNTIMES_DIR)

.PHONY: qemu-guest
qemu-guest: ## write the kernel and the initramfs of the virtual machines of test-clients
	$(IN_TEST) ./vm -web $(RUNTIMES_DIR)

test-clients: build reference runtimes ## containers of containerd 1.6 and 2, nerdctl, podman, buildah, BuildKit, cnitool, LXC, systemd-nspawn, Docker, and CRI-O, Nomad and qemu's guests if they were built; CLIENTS=-require: no skipping of Debian's
	$(IN_TEST) ./clients -bin $(abspath $(BIN)) -runtimes $(RUNTIMES_DIR) -reference $(NEWEST_DIR) $(CLIENTS)

.PHONY: test-systemd
test-systemd: build ## the units of dist on Debian 12 with systemd, in qemu: reload of nftables and firewalld, reboot, power cut, with a container of podman, and Docker started later; as root; SYSTEMD=-require: no skipping
	$(IN_TEST) ./vm -systemd -limit 25m $(SYSTEMD)

.PHONY: test-openrc
test-openrc: build ## the OpenRC scripts of dist on Debian 12, in namespaces, as root; OPENRC=-require: no skipping
	$(IN_TEST) ./openrc -bin $(abspath $(BIN)) $(OPENRC)

.PHONY: test-tour
test-tour: build ## examples/initramfs in qemu: its namespaces, a run in 16 MB, and the commands of docs/tutorial.md, with busybox and nothing else
	$(IN_TEST) ./vm -tour -limit 10m

.PHONY: test-readme
test-readme: ## the commands of the README's first half, on a bare Debian 12; README=-require: no skipping
	$(GO) run -C test/readme . $(README)

# flanneld is built where go's own cache is. On amd64 its backend udp needs a C compiler.
FLANNEL := v0.25.7
FLANNELD = $(shell $(GO) env GOCACHE)/cnibox-flannel-$(FLANNEL)/flannel

flanneld: ## build flanneld, for test-nodes
	@[ -e $(FLANNELD) ] || GOBIN=$(dir $(FLANNELD)) CGO_ENABLED=$(if $(filter amd64,$(shell $(GO) env GOARCH)),1,0) \
		$(GO) install -trimpath -ldflags '-s -w' github.com/flannel-io/flannel@$(FLANNEL)
	@echo $(FLANNELD)

test-nodes: build flanneld ## two nodes with real etcd and flanneld, pods of the flannel plugin; NODES=-require: no skipping
	$(IN_TEST) ./nodes -bin $(abspath $(BIN)) -flanneld $(FLANNELD) $(NODES)

# Kubernetes is built once, in some 15 minutes on two cores, where go's own cache is.
KUBERNETES := v1.34.4
KUBERNETES_DIR = $(shell $(GO) env GOCACHE)/cnibox-kubernetes-$(KUBERNETES)
.PHONY: kubernetes test-kubernetes

kubernetes: ## build Kubernetes' programs, for test-kubernetes
	@[ -e $(KUBERNETES_DIR)/.done ] || { mkdir -p $(KUBERNETES_DIR) && CGO_ENABLED=0 $(GO) build -C test/kubernetes -trimpath \
		-ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34' \
		-o $(KUBERNETES_DIR)/ tool && touch $(KUBERNETES_DIR)/.done; }
	@echo $(KUBERNETES_DIR)

test-kubernetes: build reference flanneld kubernetes ## two nodes of a real Kubernetes with containerd, flanneld and kube-proxy; NODES=-require: no skipping
	$(IN_TEST) ./nodes -bin $(abspath $(BIN)) -flanneld $(FLANNELD) -kubernetes $(KUBERNETES_DIR) -reference $(NEWEST_DIR) $(NODES)

CUTS ?= 500
.PHONY: test-power
test-power: build ## power cuts at random moments on ext4, xfs, f2fs and an overlay, CUTS=500 of them, as root; SEED=N: as in an earlier run, POWER=-require: no skipping
	$(IN_TEST) ./power -bin $(abspath $(BIN)) -cuts $(CUTS) $(if $(SEED),-seed $(SEED)) $(POWER)

MINUTES ?= 10
.PHONY: soak
soak: build ## random verbs, kills, flushes and lost namespaces for MINUTES=10, and what they leave; SEED=N: as in an earlier run
	$(IN_TEST) ./soak -bin $(abspath $(BIN)) -time $(MINUTES)m $(if $(SEED),-seed $(SEED))

# A count of runs ends cleanly; a time may end go test in the midst of one, as
# "context deadline exceeded" without a finding.
fuzz: ## fuzz each parser of foreign bytes for FUZZTIME=1m, or a count as 10000x
	@grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | while IFS=: read -r file name; do \
		echo "fuzz $${name#func } in $${file%/*}"; \
		$(GO) test -C "$${file%/*}" -run '^$$' -fuzz "^$${name#func }$$" -fuzztime $(FUZZTIME) . >.fuzz.log 2>&1 \
			|| { cat .fuzz.log; exit 1; }; \
	done; status=$$?; rm -f .fuzz.log; exit $$status

# The binary of an earlier revision, built as that one's own Makefile says.
BASE_BIN = $(shell $(GO) env GOCACHE)/cnibox-base-$(shell git rev-parse --short=12 '$(BASE)^{commit}' 2>/dev/null || echo missing)

base: ## build the binary of the release before, to upgrade from, or of a revision to compare with (BASE=9f333ea)
	@[ -e $(BASE_BIN) ] || { tree=$$(mktemp -d) && git archive $(BASE) | tar -x -C $$tree && \
		$(MAKE) --no-print-directory -s -C $$tree build BIN=$(BASE_BIN); status=$$?; rm -rf $$tree; exit $$status; }

bench: build $(if $(BASE),base,$(if $(filter-out newest,$(REFERENCE)),,reference)) ## times and sizes against the newest reference plugins (REFERENCE=DIR: those in a directory), or against a revision (BASE=9f333ea)
	$(IN_TEST) ./bench -bin $(abspath $(BIN)) $(if $(BASE),-base $(BASE_BIN),-reference $(abspath $(or $(filter-out newest,$(REFERENCE)),$(NEWEST_DIR)))) $(BENCHFLAGS)

# On a machine that does nothing else: what users and docs/numbers.md read comes from here alone.
numbers: build reference ## measure all against the newest reference, and write the tables of README.md and docs/numbers.md
	mkdir -p bin
	$(IN_TEST) ./bench -bin $(abspath $(BIN)) -reference $(NEWEST_DIR) -json $(abspath bin/bench.json) $(BENCHFLAGS)
	$(IN_TEST) ./bench -json $(abspath bin/bench.json) -write $(abspath README.md),$(abspath docs/numbers.md)
	$(MAKE) --no-print-directory chart

numbers-base: BASE = 9f333ea
numbers-base: build ## measure all against an earlier revision (BASE=9f333ea), and write the table of docs/numbers.md
	@$(MAKE) --no-print-directory -s base BASE=$(BASE)
	mkdir -p bin
	$(IN_TEST) ./bench -bin $(abspath $(BIN)) -base $(BASE_BIN) -json $(abspath bin/bench-base.json) $(BENCHFLAGS)
	$(IN_TEST) ./bench -json $(abspath bin/bench-base.json) -write $(abspath docs/numbers.md)

# Links that this kernel may lack, against the reference, in a guest that has them. Times
# are those of an emulated processor, where KVM does not work; ratios are what they are.
bench-vm: build ## vlan, ipvlan and macvlan against the reference, on Debian's kernel in qemu
	$(IN_TEST) ./vm -kernel $(or $(KERNEL),6.1) -bench '-only=links -rounds=9'

# Pictures of real runs, on a machine that does nothing else: a figure that is far off the tables of docs/numbers.md is
# an error. The graph is drawn by dot, of Debian's graphviz.
.PHONY: pictures chart
pictures: build traffic chart ## docs/demo.svg and docs/network.svg of a run of the demo, docs/bench.svg of the tables
	@command -v dot >/dev/null || { echo "pictures: there is no dot: apt-get install graphviz" >&2; exit 1; }
	@tmp=$$(mktemp -d) && trap 'rm -rf $$tmp' EXIT && DEMO_COLOR=1 $(DEMO) $$tmp/network.dot >$$tmp/demo && \
	$(IN_TEST) ./pictures -terminal $(CURDIR)/docs/demo.svg $(CURDIR)/docs/numbers.md <$$tmp/demo && \
	dot -Nfontname=sans-serif -Efontname=sans-serif -Nfontsize=11 -Efontsize=10 -Tsvg -o $$tmp/network.svg $$tmp/network.dot && \
	$(IN_TEST) ./pictures -graph $(CURDIR)/docs/network.svg <$$tmp/network.svg && echo docs/demo.svg docs/network.svg

chart: ## docs/bench.svg, of the tables that make numbers has written
	$(IN_TEST) ./pictures -chart $(CURDIR)/docs/bench.svg $(CURDIR)/docs/numbers.md

DEMO = sh test/demo/demo.sh $(abspath $(BIN)) $(CURDIR)/bin/traffic
.PHONY: traffic

demo: build traffic ## two containers on the default network, real traffic, nothing left behind
	@$(DEMO)

traffic:
	@$(GO) build -o bin/traffic test/demo/traffic.go

# What is built already is installed as it is. The files are made here and not by the binary,
# which may be for another machine: each by rename, so that a name leads to the old file or to
# the new one. Those of the plugins have the path of the binary in a #! line, which the kernel reads:
# what is copied onto one name changes no other. The links for people, in $(SBINDIR), are relative: they
# work also in an image that is being made.
install: $(if $(GOARCH)$(if $(wildcard $(BIN)),,none),build) ## install what is built into $(DESTDIR)$(BINDIR), with a file for each plugin, links cnibox and cni-exec into $(SBINDIR), manual pages and completions into $(DATADIR), the units of systemd into $(UNITDIR) if that is set
	@case '$(BINDIR)' in *[[:space:]]* | [!/]*) echo "BINDIR '$(BINDIR)' is not an absolute path without spaces, as a #! line needs it" >&2; exit 1 ;; esac
	@[ -n "$(DESTDIR)" ] || $(BIN) version >/dev/null || { echo "$(BIN) does not run here, perhaps it is for another machine: \`make build\`, or DESTDIR=" >&2; exit 1; }
	mkdir -p "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(SBINDIR)"
	@for path in $(addprefix $(BINDIR)/,cnibox $(INSTALLED)) $(SBINDIR)/cnibox $(SBINDIR)/cni-exec; do \
		path="$(DESTDIR)$$path"; [ -L "$$path" ] || [ ! -d "$$path" ] || { echo "$$path is a directory: nothing was changed" >&2; exit 1; }; \
	done
	rm -f "$(DESTDIR)$(BINDIR)/.cnibox.new" && cp $(BIN) "$(DESTDIR)$(BINDIR)/.cnibox.new"
	mv -fT "$(DESTDIR)$(BINDIR)/.cnibox.new" "$(DESTDIR)$(BINDIR)/cnibox"
	@cd "$(DESTDIR)$(BINDIR)" && for name in $(INSTALLED); do \
		rm -f .cnibox.new && echo '#!$(BINDIR)/cnibox' >.cnibox.new && chmod 755 .cnibox.new && mv -fT .cnibox.new $$name || exit 1; \
	done
	@cd "$(DESTDIR)$(SBINDIR)" || exit 1; [ ! . -ef "$(DESTDIR)$(BINDIR)" ] || exit 0; \
	here=$$(pwd -P); root=$$(cd "$(DESTDIR)/" && pwd -P); up=$$(echo "/$${here#"$$root"}" | sed 's,//*[^/][^/]*,../,g'); \
	for name in cnibox cni-exec; do \
		ln -sf "$${up}$(patsubst /%,%,$(BINDIR))/cnibox" .cnibox.link && mv -fT .cnibox.link $$name || exit 1; \
	done
	@[ -n "$(UNITDIR)" ] || exit 0; mkdir -p "$(DESTDIR)$(UNITDIR)" || exit 1; \
	for unit in dist/*.service dist/*.socket; do \
		to="$(DESTDIR)$(UNITDIR)/$${unit##*/}"; rm -f "$$to.new" && sed 's,/opt/cni/bin,$(BINDIR),g' "$$unit" >"$$to.new" && chmod 644 "$$to.new" && mv -fT "$$to.new" "$$to" || exit 1; \
	done
	@[ -n "$(DATADIR)" ] || exit 0; share="$(DESTDIR)$(DATADIR)"; \
	install -D -m 644 dist/completion/cni-exec.bash "$$share/bash-completion/completions/cni-exec" && \
	install -D -m 644 dist/completion/_cni-exec "$$share/zsh/site-functions/_cni-exec" && \
	install -D -m 644 dist/completion/cni-exec.fish "$$share/fish/vendor_completions.d/cni-exec.fish"
	@[ -n "$(DATADIR)" ] && [ -n "$(MAN)" ] || exit 0; [ -d "$(MAN)" ] || $(WRITE_PAGES) 2>/dev/null || \
		{ echo "no manual pages: there is no $(MAN), and no go to write it"; exit 0; }; \
	mkdir -p "$(DESTDIR)$(MANDIR)/man8" && install -m 644 "$(MAN)"/*.8 "$(DESTDIR)$(MANDIR)/man8"

uninstall: ## delete what install has made, with the same variables; what others have put into $(BINDIR), and the state, stay
	@cd "$(DESTDIR)$(BINDIR)" 2>/dev/null || exit 0; for name in *; do \
		{ [ -f "$$name" ] && read -r first <"$$name" && [ "$$first" = '#!$(BINDIR)/cnibox' ]; } 2>/dev/null || [ "$$(readlink "$$name")" = cnibox ] || continue; \
		rm -f "$$name" || exit 1; \
	done
	@for name in cnibox cni-exec; do \
		link="$(DESTDIR)$(SBINDIR)/$$name"; [ ! -L "$$link" ] || [ "$$(basename "$$(readlink "$$link")")" != cnibox ] || rm -f "$$link" || exit 1; \
	done
	rm -f "$(DESTDIR)$(BINDIR)/cnibox"
	@[ -z "$(UNITDIR)" ] || for unit in dist/*.service dist/*.socket; do rm -f "$(DESTDIR)$(UNITDIR)/$${unit##*/}" || exit 1; done
	@[ -z "$(DATADIR)" ] || { cd "$(DESTDIR)$(DATADIR)" 2>/dev/null && rm -f bash-completion/completions/cni-exec zsh/site-functions/_cni-exec fish/vendor_completions.d/cni-exec.fish; }
	@[ -z "$(DATADIR)" ] || rm -f "$(DESTDIR)$(MANDIR)"/man8/cnibox.8 "$(DESTDIR)$(MANDIR)"/man8/cni-exec.8 $(patsubst %,"$(DESTDIR)$(MANDIR)"/man8/cnibox-%.8,$(PLUGINS))

# The release's program is a module of its own, for whose libraries the tests need not wait.
RELEASED = -version '$(VERSION)' -commit '$(COMMIT)' -epoch '$(EPOCH)'
EPOCH   = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct),0)
OUT    ?= bin/release

.PHONY: release reproduce
release: ## archives, packages, SBOM, image and checksums of all architectures (ARCHES=amd64) into OUT=DIR; SIGN=command signs SHA256SUMS
	GOFLAGS= $(GO) run -C test/release . $(RELEASED) -out '$(OUT)' -arches '$(if $(filter file,$(origin ARCHES)),,$(ARCHES))' -sign '$(SIGN)'

# The second release is made of an archive of the commit, in another directory, by another user where
# namespaces of users can be had, with another umask, time zone, locale and home, flags of Go, and a cache
# of its own.
reproduce: ARCH = $(firstword $(if $(filter file,$(origin ARCHES)),amd64,$(ARCHES)))
reproduce: ## make the release of ARCHES (default amd64) twice, differently, and compare the bytes
	@[ -z "$$(git status --porcelain)" ] || { echo "reproduce: commit first: the second release is made of HEAD"; exit 1; }
	@tmp=$$(mktemp -d) && trap 'chmod -R u+w $$tmp; rm -rf $$tmp' EXIT && mkdir "$$tmp/a tree" && git archive HEAD | tar -x -C "$$tmp/a tree" && \
	GOFLAGS= $(GO) build -C test/release -o $$tmp/release . && \
	(cd test/release && $$tmp/release $(RELEASED) -out $$tmp/one -arches $(ARCH) >/dev/null) && \
	other= && { ! unshare --user true 2>/dev/null || other='unshare --user'; } && \
	(umask 077 && cd "$$tmp/a tree/test/release" && GOFLAGS=-p=1 TZ=Asia/Tokyo LC_ALL=C HOME=$$tmp GOCACHE=$$tmp/cache \
		GOMODCACHE=$$($(GO) env GOMODCACHE) GOPATH=$$tmp/path GOPROXY=$$($(GO) env GOPROXY) GONOSUMDB=$$($(GO) env GONOSUMDB) GOSUMDB=$$($(GO) env GOSUMDB) \
		$$other $$tmp/release $(RELEASED) -out $$tmp/two -arches $(ARCH) >/dev/null) && \
	diff $$tmp/one/SHA256SUMS $$tmp/two/SHA256SUMS && cd $$tmp/one && sha256sum --quiet -c SHA256SUMS && cat SHA256SUMS && echo "reproduce: PASS: the same bytes twice"

.PHONY: test-packages
test-packages: ## packages unpacked, recipes executed, lintian, rpmlint, and Debian's in the place of the reference's plugins below podman, on a Debian 12 in namespaces, as root; PACKAGES=-require: no skipping
	GOFLAGS= $(GO) vet -C test/release ./... && GOFLAGS= $(GO) test -C test/release -count=1 -timeout $(LIMIT) ./...
	@tmp=$$(mktemp -d) && trap 'rm -rf $$tmp' EXIT && $(MAKE) --no-print-directory -s release OUT=$$tmp ARCHES=$(shell $(GO) env GOHOSTARCH) >/dev/null && \
	if command -v lintian >/dev/null; then lintian --allow-root --fail-on error,warning,info --display-info $$tmp/*.deb && echo "packages: PASS: lintian is quiet"; \
	else echo "SKIPPED: there is no lintian"; fi && \
	if command -v rpmlint >/dev/null && command -v rpm >/dev/null; then rpmlint --strict -c test/packages/rpmlint.toml $$tmp/*.rpm && echo "packages: PASS: rpmlint is quiet"; \
	else echo "SKIPPED: there is no rpmlint, or no rpm"; fi && \
	$(IN_TEST) ./packages -deb $$tmp/*.deb $(PACKAGES)

.PHONY: ci-long
ci-long: ## what .ci/run leaves out, as root: STEPS="test-vm soak" of it; a step that has passed for this commit is not run again unless it is named
	@$(GO) build -C test -o '$(TOOLS)/ci' ./ci && '$(TOOLS)/ci' long $(STEPS)

clean: ## remove what was built
	rm -rf bin
