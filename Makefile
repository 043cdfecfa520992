# `make help` lists the targets. There are three modules: the root, examples/ and bench/. The root
# must not depend on the others.

GO          ?= go
STATICCHECK  = honnef.co/go/tools/cmd/staticcheck@v0.8.2
CHECKLOCKS   = gvisor.dev/gvisor/tools/checklocks/cmd/checklocks@v0.0.0-20260905035102-160fafc42237
FUZZTIME    ?= 10s
SOAK        ?= 30m
LOAD        ?= 10m
SEED        ?= 0
BENCHFLAGS  ?=
VMFLAGS     ?=

# Where make install puts files. Those who build packages set DESTDIR and PREFIX=/usr.
DESTDIR     ?=
PREFIX      ?= /usr/local
sbindir     ?= $(PREFIX)/sbin
datadir     ?= $(PREFIX)/share
mandir      ?= $(datadir)/man
docdir      ?= $(datadir)/doc/unetd
bashdir     ?= $(datadir)/bash-completion/completions
zshdir      ?= $(datadir)/zsh/site-functions
fishdir     ?= $(datadir)/fish/vendor_completions.d
systemddir  ?= $(PREFIX)/lib/systemd/system
sysusersdir ?= $(PREFIX)/lib/sysusers.d
tmpfilesdir ?= $(PREFIX)/lib/tmpfiles.d
sysconfdir  := /etc# unetd reads its policy there
BIN         ?= bin# what make unetd and make deb make
UNETD       ?= $(BIN)/unetd

# Of the Debian package. Without a version it has that of the commit.
VERSION     ?=
ARCH        ?= $(shell $(GO) env GOARCH)
MAINTAINER  ?= unet maintainers <unet@users.noreply.github.com>
COMPRESS    ?= xz

# Network namespaces, XDP programs and AF_XDP sockets need root.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E env "PATH=$(PATH)")

.PHONY: help build unetd install uninstall deb demo test test-addresses test-containers test-rdma-peers test-vm check bench attack soak fuzz generate clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: unetd ## build all commands, and unetd's manual pages and completions, into bin/
	$(GO) build -C examples -trimpath -o ../bin/ ./...
	$(GO) build -C bench -trimpath -o ../bin/ ./unetbench ./unetservice ./unetplot

# unetd writes its completions itself; its manual pages are its help.
unetd:
	$(GO) build -trimpath -o $(BIN)/ ./cmd/unetd
	rm -rf $(BIN)/share && mkdir -p $(BIN)/share
	deploy/man $(BIN)/unetd $(BIN)/share/man8 "$(shell git log -1 --format=%cs)"
	for shell in bash zsh fish; do $(BIN)/unetd completion $$shell > $(BIN)/share/$$shell || exit 1; done

# make install needs no go if make build was run before, by another user than root.
$(BIN)/share:
	$(MAKE) unetd

# Files are written for /usr.
PLACE = sed 's,/usr/sbin,$(sbindir),; s,/usr/share/doc/unetd,$(docdir),'

install: $(BIN)/share ## install unetd: PREFIX=/usr/local, DESTDIR; configuration that is there stays
	install -d $(addprefix $(DESTDIR),$(sbindir) $(mandir)/man8 $(docdir)/examples $(bashdir) $(zshdir) $(fishdir) $(systemddir) $(sysusersdir) $(tmpfilesdir) $(sysconfdir)/default $(sysconfdir)/unet)
	install -m 755 $(UNETD) $(DESTDIR)$(sbindir)/unetd
	install -m 644 $(BIN)/share/man8/*.8 $(DESTDIR)$(mandir)/man8/
	install -m 644 $(BIN)/share/bash $(DESTDIR)$(bashdir)/unetd
	install -m 644 $(BIN)/share/zsh $(DESTDIR)$(zshdir)/_unetd
	install -m 644 $(BIN)/share/fish $(DESTDIR)$(fishdir)/unetd.fish
	install -m 644 docs/policy.md docs/operations.md $(DESTDIR)$(docdir)/
	install -m 644 docs/policy.example.yaml deploy/grafana/unet.json deploy/prometheus/unet.rules.yml $(DESTDIR)$(docdir)/examples/
	install -m 644 deploy/systemd/unetd.sysusers $(DESTDIR)$(sysusersdir)/unetd.conf
	install -m 644 deploy/systemd/unetd.tmpfiles $(DESTDIR)$(tmpfilesdir)/unetd.conf
	$(PLACE) deploy/systemd/unetd.service > $(DESTDIR)$(systemddir)/unetd.service
	chmod 644 $(DESTDIR)$(systemddir)/unetd.service
	test -e $(DESTDIR)$(sysconfdir)/default/unetd || install -m 644 deploy/systemd/unetd.default $(DESTDIR)$(sysconfdir)/default/unetd
	test -e $(DESTDIR)$(sysconfdir)/unet/policy.yaml || { $(PLACE) deploy/policy.yaml > $(DESTDIR)$(sysconfdir)/unet/policy.yaml && chmod 644 $(DESTDIR)$(sysconfdir)/unet/policy.yaml; }

uninstall: ## remove what make install has installed; configuration that was changed stays
	rm -f $(addprefix $(DESTDIR),$(sbindir)/unetd $(mandir)/man8/unetd.8 $(mandir)/man8/unetd-*.8 $(bashdir)/unetd $(zshdir)/_unetd $(fishdir)/unetd.fish)
	rm -f $(addprefix $(DESTDIR),$(systemddir)/unetd.service $(sysusersdir)/unetd.conf $(tmpfilesdir)/unetd.conf)
	rm -rf $(DESTDIR)$(docdir)
	cmp -s deploy/systemd/unetd.default $(DESTDIR)$(sysconfdir)/default/unetd && rm $(DESTDIR)$(sysconfdir)/default/unetd || :
	$(PLACE) deploy/policy.yaml | cmp -s - $(DESTDIR)$(sysconfdir)/unet/policy.yaml && rm $(DESTDIR)$(sysconfdir)/unet/policy.yaml || :
	test ! -d $(DESTDIR)$(sysconfdir)/unet || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(sysconfdir)/unet

# The program of the package needs no libc, so the package is for all releases.
deb: unetd ## build the Debian package bin/unetd_VERSION_ARCH.deb (needs dpkg-deb, git, gzip)
	CGO_ENABLED=0 GOARCH=$(ARCH) $(GO) build -trimpath -ldflags=-s -o $(BIN)/deb/unetd ./cmd/unetd
	GO="$(GO)" VERSION="$(VERSION)" ARCH=$(ARCH) MAINTAINER="$(MAINTAINER)" COMPRESS=$(COMPRESS) BIN=$(BIN) UNETD=$(BIN)/deb/unetd deploy/debian/build $(BIN)

demo: build ## round trips of 64 bytes over TCP, between two hosts and on one, on unet and on kernel sockets, in seconds
	$(SUDO) bin/unetbench rtt --rounds 5 --place pair,local --transport tcp,kernel-tcp,go-tcp

# `make test` runs a package once, two packages at a time: under the race detector, with the build tag
# unetdebug (lock order of stack, freed frames of segment). In packages of one goroutine the detector
# finds nothing, so these run without it. Two run both ways: all schedules of stack are tried, and most
# seeds of proto/rdma simulated, without it only. go vet is part of make check.
MODULE     = github.com/unet-go/unet
NO_RACE    = bpf proto/tcp test/packaging
BOTH       = stack proto/rdma
PACKAGES   = $(shell $(GO) list ./...)
in         = $(addprefix $(MODULE)/,$(1))
TEST       = $(GO) test $(1) -p 2 -vet=off -count=1 -timeout 30m -tags unetdebug $(2)
# Without this option each process under the race detector sleeps for a second before it exits.
RACE       = env GORACE=atexit_sleep_ms=0 $(call TEST,$(1) -race,$(2))

test: build ## run every test, as root, in network namespaces of its own
ifeq ($(shell $(GO) env CGO_ENABLED),1)
	$(SUDO) $(call TEST,,$(call in,$(NO_RACE) $(BOTH)))
	$(SUDO) $(call RACE,,$(filter-out $(call in,$(NO_RACE)),$(PACKAGES)))
	$(SUDO) $(call RACE,-C examples,./...)
	$(SUDO) $(call RACE,-C bench,./...)
else
	$(SUDO) $(call TEST,,./...)
	$(SUDO) $(call TEST,-C examples,./...)
	$(SUDO) $(call TEST,-C bench,./...)
	@echo "make test: left out the race detector, which needs a C compiler (apt install gcc libc6-dev)"
endif

test-addresses: ## add and remove addresses under TCP, UDP and RDMA for LOAD (10m), beside the kernel
	$(SUDO) $(GO) test -v -count=1 -timeout 0 -run '^TestRows$$/under_load$$' ./test/addresses -load $(LOAD)

test-containers: ## run applications and unetd in containers of podman, docker and systemd-nspawn, those that are installed and work
	$(SUDO) $(GO) test -v -count=1 -timeout 20m -run '^TestEngines$$' ./cmd/unetd

test-rdma-peers: ## run rdma-core's programs in a virtual machine against unet (downloads packages)
	$(SUDO) $(GO) test -v -count=1 -timeout 20m ./test/rdmapeers -guest $(CURDIR)/bin/guest

test-vm: ## run unet on network cards of virtual machines, under an old kernel and a new one (downloads packages)
	for kernel in old new; do \
		$(SUDO) $(GO) test -v -count=1 -timeout 60m ./test/drivers -guest $(CURDIR)/bin/guest -kernel $$kernel $(VMFLAGS) || exit 1; \
	done

# unetd and endpoints need Linux. The rest, with package unettest, is for tests on any system.
SYSTEMS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

check: ## format, vet, lint, locks, builds for other systems, import rules, stale BPF objects
	@files=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$files" || { echo "gofmt would change:"; echo "$$files"; exit 1; }
	for module in . examples bench; do \
		$(GO) vet -C $$module ./... && $(GO) vet -C $$module -tags unetdebug ./... && $(GO) run -C $$module $(STATICCHECK) ./... || exit 1; \
	done
	$(GO) run $(CHECKLOCKS) -test=false -inferred=false -atomic=false ./...
	$(GO) run -C examples $(CHECKLOCKS) -test=false -inferred=false -atomic=false ./...
	for system in $(SYSTEMS); do \
		echo "build and vet for $$system"; export CGO_ENABLED=0 GOOS=$${system%/*} GOARCH=$${system#*/}; \
		$(GO) build ./... && $(GO) vet ./... || exit 1; \
	done
	$(GO) test -count=1 -run 'TestImportDirections' .
	$(GO) test -count=1 -run 'TestObjectsAreCurrent' ./bpf

bench: build ## measure small-message latency and rate against kernel sockets
	$(SUDO) bin/unetbench all $(BENCHFLAGS)
	$(SUDO) bin/unetbench scale $(BENCHFLAGS)

attack: build ## the attack suite in full: every case, 10 million frames, 1,000 cycles, 20 restarts
	$(SUDO) $(GO) test -count=1 -v -timeout 60m ./test/attack -attack.long

soak: ## simulate TCP, then RDMA, over bad networks, each for SOAK (30m), with seeds from SEED on (0: new ones)
	$(GO) test -count=1 -timeout 0 -v -run '^TestSoak$$' ./proto/tcp -soak $(SOAK) -seed $(SEED)
	$(GO) test -count=1 -timeout 0 -v -run '^TestSoak$$' ./proto/rdma -soak $(SOAK) -seed $(SEED)

fuzz: ## fuzz every parser, FUZZTIME (10s) each
	@for module in . examples bench; do for pkg in $$($(GO) list -C $$module ./...); do \
		targets=$$($(GO) test -C $$module -list '^Fuzz' $$pkg) || exit 1; \
		for target in $$(echo "$$targets" | grep '^Fuzz'); do \
			echo "$$pkg $$target"; \
			$(GO) test -C $$module -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done; done

generate: ## compile the BPF programs (needs clang, llvm-strip, libbpf-dev)
	@command -v clang >/dev/null && test -e /usr/include/bpf/bpf_helpers.h || \
		{ echo "make generate: clang, llvm and libbpf headers are needed: apt install clang llvm libbpf-dev"; exit 1; }
	$(GO) generate ./bpf

clean: ## remove what build made
	rm -rf bin
