# make demo and make test set up everything themselves. Run them as root, or as a user with sudo.

VERSION      := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS      := -s -w -X main.version=$(VERSION) -X packetwalk.dev/internal/cli.Version=$(VERSION)
# How many packages are tested at a time, and how many of a package's parallel tests. Half of their time they wait, for the kernel to remove
# links and namespaces among others.
TEST_PARALLEL ?= 4
TEST_TIMEOUT  ?= 45m
FUZZTIME      ?= 10s
FUZZ_PARALLEL ?= 1
SERVICES      ?= 100000
# The architecture that labs are packed for, and where their programs are: bin, or bin/arm64 on another architecture's machine.
HOST_ARCH     := $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(shell uname -m)))
LAB_ARCH      ?= $(HOST_ARCH)
BIN            = bin$(addprefix /,$(filter-out $(HOST_ARCH),$(LAB_ARCH)))
# The compiler that links runc for another architecture.
CROSS_arm64   := aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc:libc6-dev-arm64-cross
CROSS_amd64   := x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu x86_64-linux-gnu-gcc:libc6-dev-amd64-cross
ACTIONLINT    := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

export CGO_ENABLED := 0
# All processors of an architecture, whatever the caller's are.
export GOAMD64 := v1
export GOARM64 := v8.0
# The same for programs and tests, so that each package is compiled once.
export GOFLAGS += -trimpath
# A distribution may set its Go to local, which never downloads the version that go.mod needs.
export GOTOOLCHAIN ?= auto
# What can take more than some seconds says so.
PROGRESS := $(CURDIR)/scripts/with-progress
SINCE := $(shell date +%s)
# The seed of the random worlds that tests compare with the kernel: another one for each commit, or second where there is no git.
WORLDS_SEED := $(shell commit=$$(git -c safe.directory='*' rev-parse HEAD 2>/dev/null | cut -c1-7); \
	if [ "$$commit" ]; then echo $$((0x$$commit)); else date +%s; fi)
export WORLDS_SEED

.PHONY: help demo test build controlplane calico deps claims bench bench-proxy lint fuzz clean
help: ## list the targets
	@sed -n 's/^\([a-z0-9.-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: deps controlplane build ## run the main job step by step
	@SINCE=$(SINCE) scripts/demo.sh

# These packages bring up labs or worlds: two packages at a time, each with up to two labs. The longest begin first.
LABS := claims faults realnode tours verify plugin policies places
# Of the others, those that take longest begin first.
SLOW := $(addprefix ./internal/,node/agent answer/proof kernel/dump node/cni)

# Tests are built as the caller and run as root. With CI set, tests that cannot run fail instead of being skipped.
test: deps controlplane calico calico-3.27 build ## run all tests
	@echo "test/verify: random worlds from seed $(WORLDS_SEED); to repeat them: make verify N=100 SEED=$(WORLDS_SEED) ODDS=0"
	go vet ./...
	@failed=0; packages=$$(go list $(SLOW) ./...) || exit 1; export CI=1; \
	go test -vet=off -p $(TEST_PARALLEL) -parallel $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" \
		$$(echo "$$packages" | grep -v $(patsubst %,-e '/test/%$$',$(LABS))) || failed=1; \
	go test -vet=off -p 2 -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" $(LABS:%=./test/%) || failed=1; \
	exit $$failed

build: ## build the programs into bin/
	@mkdir -p $(BIN)
	@GOARCH=$(LAB_ARCH) $(PROGRESS) "building packetwalk" go build -buildvcs=false -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/... \
		github.com/containernetworking/plugins/plugins/meta/portmap
	@ln -f $(BIN)/packetwalk $(BIN)/kubectl-packetwalk

.PHONY: plugin
plugin: ## build only bin/kubectl-packetwalk, for GOOS= (linux, darwin or windows) and GOARCH=
	@$(PROGRESS) "building kubectl-packetwalk" go build -ldflags "$(LDFLAGS)" -o bin/kubectl-packetwalk$(if $(filter windows,$(GOOS)),.exe) ./cmd/packetwalk

controlplane: ## build upstream's control plane, kubelet and containerd, and the nodes' root; cached for all clones (minutes)
	@$(PROGRESS) "looking for Kubernetes' programs in the cache" go build -o bin/tools/ ./tools/controlplane
	@bin/tools/controlplane build -arch $(LAB_ARCH) -bin $(BIN)
	@bin/tools/controlplane build -arch $(LAB_ARCH) -bin $(BIN) realnode
	@scripts/base $(LAB_ARCH) $(BIN)

calico: ## build Calico's agent felix 3.31, for policy calico; cached for all clones (minutes)
	@go run ./tools/controlplane build -arch $(LAB_ARCH) -bin $(BIN) calico

.PHONY: calico-3.27
calico-3.27: ## build felix 3.27, for policy calico with rules of older versions (minutes)
	@go run ./tools/controlplane build -arch $(LAB_ARCH) -bin $(BIN) calico-3.27

deps: ## install missing system packages by apt
	@scripts/deps $(if $(filter-out $(HOST_ARCH),$(LAB_ARCH)),qemu-aarch64-static:qemu-user-static update-binfmts:binfmt-support $(CROSS_$(LAB_ARCH)))

claims: deps controlplane calico calico-3.27 build ## test what the articles show, claim by claim: pass or FAIL
	CI=1 go run ./tools/claims -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root"

bench: deps controlplane calico calico-3.27 build ## measure, with medians of several runs
	go build -o bin/bench ./tools/bench
	go test -run '^$$' -bench . -benchtime 5x ./internal/model/walk
	scripts/as-root bin/bench

bench-proxy: deps controlplane build ## compare kube-proxy and packetwalk-node, with up to SERVICES services; writes docs/performance.md
	go build -o bin/bench ./tools/bench
	scripts/as-root bin/bench -services $(SERVICES) -page docs/performance.md proxy

lint: ## run golangci-lint, tools/words and actionlint
	@git ls-files | go run ./tools/words
	go run $(GOLANGCI_LINT) run --allow-serial-runners ./...
	go run $(ACTIONLINT)

# The nested modules that have code. The others pin versions only.
MODULES := $(patsubst %/,%,$(sort $(dir $(wildcard controlplane/*.go controlplane/*/*.go)))) tools/ui

.PHONY: ui
ui: ## bundle the page of "packetwalk ui" from ui/src into internal/webui/bundle
	go -C tools/ui run .

.PHONY: test-ui
test-ui: build ## compare the page's bundle with its sources, and test the page in Chromium (apt-get install chromium)
	go -C tools/ui run . --check
	CI=1 go -C tools/ui test -count=1 ./...

.PHONY: vet-modules
vet-modules: ## compile and vet the nested modules
	@set -e; for module in $(MODULES); do echo "vet $$module"; nice go -C $$module vet ./...; done

.PHONY: lock
lock: deps ## lock today's versions of Debian's packages for nodes, in scripts/base.lock
	@scripts/base lock

.PHONY: outdated
outdated: ## list what has newer versions (2 minutes)
	@scripts/outdated

# The systems on which kubectl-packetwalk and "packetwalk walk --snapshot" run, and the packages that have files for only some of them.
# To vet these packages, Go compiles all that they import.
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
PORTABLE  := ./cmd/packetwalk $(addprefix ./internal/,cli session base/program base/tempfile)

.PHONY: cross
cross: test-arm64 ## compile and vet kubectl-packetwalk for Linux, macOS and Windows; test-arm64
	@set -e; for platform in $(PLATFORMS); do echo "vet $$platform"; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} nice go vet $(PORTABLE); \
	done

.PHONY: test-arm64
test-arm64: build ## run arm64's programs, and the tests of rules and walks, under qemu-user
ifneq ($(HOST_ARCH),arm64)
	@scripts/deps qemu-aarch64-static:qemu-user-static
	@$(MAKE) --no-print-directory build LAB_ARCH=arm64
	@scripts/test-arm64 $(notdir $(wildcard cmd/*)) portmap
	CI=1 GOARCH=arm64 go test -vet=off -timeout $(TEST_TIMEOUT) -exec qemu-aarch64-static ./internal/syntax/... ./internal/model/...
else
	@echo "this machine is arm64: make test runs these without qemu-user"
endif

# An input that covers more is minimised ten times at most. Without a limit this may take a minute for each, and most of FUZZTIME.
fuzz: ## run every fuzz target for FUZZTIME, with FUZZ_PARALLEL processes
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		for f in $$(grep -rhoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | cut -c6-); do \
			echo "$$dir $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x -parallel $(FUZZ_PARALLEL) "$$dir"; \
		done; \
	done

clean: ## remove bin/; the control plane's cache stays
	rm -rf bin

.PHONY: test-modules
test-modules: deps ## test the control plane's module and the Helm chart's
	cd controlplane && go test ./...
	cd controlplane/chart && go test ./...

.PHONY: manifests
manifests: ## render deploy/manifests from deploy/chart
	cd controlplane/chart && go test -count=1 -run TestManifests . -update

.PHONY: helm
helm: ## build bin/helm, of the version in controlplane/chart/go.mod (minutes the first time)
	@mkdir -p bin
	cd controlplane/chart && go build -o ../../bin/helm helm.sh/helm/v4/cmd/helm

.PHONY: oracle
oracle: deps ## compare the service proxy with upstream's, in both modes, in N random worlds from seed SEED
	cd controlplane/oracle && CI=1 go test -count=1 -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" ./...

.PHONY: oracle-long
oracle-long: deps ## the same in 2,000 worlds with 20 changes each (hours)
	cd controlplane/oracle && CI=1 N=$${N:-2000} CHANGES=$${CHANGES:-20} go test -count=1 -v -run TestRandomWorlds -timeout 24h \
		-exec "$(CURDIR)/scripts/as-root" .

# Kubernetes' own tests: the specs to run and to skip (regular expressions), the number of nodes, the network (overlay, bridge,
# transparent, kubenet or calico), and the page for the results.
FOCUS   ?= \[sig-network\].*\[Conformance\]
SKIP    ?=
NODES   ?= 3
NETWORK ?= overlay
PAGE    ?= docs/dev/conformance.md

.PHONY: e2e
e2e: deps controlplane calico calico-3.27 build ## run Kubernetes' own tests against a lab: FOCUS=, SKIP=, NODES=, NETWORK=
	@go run ./tools/controlplane build e2e
	@go build -o bin/e2e/ ./tools/e2e
	scripts/as-root bin/e2e/e2e -focus '$(FOCUS)' -skip '$(SKIP)' -nodes $(NODES) -network $(NETWORK) -page '$(PAGE)'

.PHONY: test-chart
test-chart: deps controlplane build helm image ## test the Helm chart on a lab: take over from kube-proxy, upgrade, remove
	CI=1 CHART=1 go test -count=1 -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" -run TestChart ./test/realnode

.PHONY: test-foreign
test-foreign: deps controlplane build helm image ## test walks through clusters with flannel, CNI's reference plugins and kube-proxy (15 to 25 minutes); RUN= selects
	@go run ./tools/controlplane build foreign
	CI=1 FOREIGN=1 go test -count=1 -v -timeout 90m -exec "$(CURDIR)/scripts/as-root" -run '$(RUN)' ./test/foreign

.PHONY: test-proxies
test-proxies: deps controlplane build ## change each service proxy to each other on a running lab, with connections (2 to 4 minutes)
	CI=1 go test -count=1 -v -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" -run ServiceProxyChanged ./test/faults -proxies abacadbcbdcda

# The suites of Debian. CACHE=1 uses the machine's caches, for work on a failure.
SUITES ?= trixie bookworm
CACHE  ?=

.PHONY: test-fresh
test-fresh: deps controlplane ## run make demo and make test in new roots of Debian (30 minutes each): SUITES=, CACHE=1, RUN=COMMANDS
	@go build -o bin/fresh/ ./tools/fresh
	scripts/as-root bin/fresh/fresh $(if $(CACHE),-cache) $(if $(RUN),-run '$(RUN)') $(SUITES)

KILLS ?= 1000

.PHONY: test-killed
test-killed: deps ## kill the writer of the service proxy's nftables table KILLS times, at random moments of its syncs
	CI=1 go test -count=1 -v -timeout 2h -exec "$(CURDIR)/scripts/as-root" -run 'TestKilled$$' ./internal/node/proxy/nftables -kills $(KILLS)

# The Debian release whose iproute2, nftables, iptables, ipset and conntrack the tests use. mmdebstrap creates its root, once a month for a
# release, once a day for sid.
SUITE   ?= trixie
IN_DEBIAN = -vet=off -count=1 -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root $(CURDIR)/scripts/in-debian $(SUITE)"

.PHONY: test-tools
test-tools: deps ## test with the ip, nft and iptables of another Debian: SUITE=trixie or sid
	CI=1 go test $(IN_DEBIAN) -p $(TEST_PARALLEL) \
		$(addprefix ./internal/,answer/... azure/fabric capture/... kernel/... model/... node/... syntax/... usercluster/...)
	@echo "test/verify: random worlds from seed $(WORLDS_SEED); to repeat them: make verify N=40 SEED=$(WORLDS_SEED) ODDS=0"
	CI=1 go test $(IN_DEBIAN) -run 'TestFound|TestWorlds' ./test/verify -worlds 40

.PHONY: test-vm
test-vm: deps controlplane calico calico-3.27 build ## test labs in a virtual machine with Debian's own kernel: SUITE=, WORLDS=, MODULES=, SHORT=1
	@scripts/deps $(if $(filter arm64,$(LAB_ARCH)),qemu-system-aarch64:qemu-system-arm,qemu-system-x86_64:qemu-system-x86) mkfs.ext4:e2fsprogs
	@GOARCH=$(LAB_ARCH) go test -c -o $(BIN)/vm/vm.test ./test/vm
	@GOARCH=$(LAB_ARCH) go build -o $(BIN)/vm/shop/ ./examples/shop/...
	@SUITE='$(SUITE)' WORLDS='$(WORLDS)' MODULES='$(MODULES)' SHORT='$(SHORT)' scripts/as-root scripts/test-vm $(LAB_ARCH) $(BIN)

# For verify: the number of worlds, the first seed, and in how many worlds a random choice is tested with many connections.
N    ?= 1000
SEED ?= 1
ODDS ?= 8

TEXTS ?= 20000

.PHONY: pasted
pasted: ## compare walks through TEXTS pasted texts with walks through the whole ones, from seed SEED (10 minutes)
	go test -count=1 -v -timeout 2h -run TestPasted ./test/verify -texts $(TEXTS) -seed $(SEED)

PACKETS ?= 5000

.PHONY: policies
policies: deps controlplane calico calico-3.27 build ## compare walks of PACKETS packets through random policies with felix, from seed SEED (30 minutes)
	CI=1 go test -count=1 -v -timeout 3h -exec "$(CURDIR)/scripts/as-root" ./test/policies -packets $(PACKETS) -seed $(SEED)

.PHONY: verify
verify: deps ## compare walks with the kernel in N random worlds, from seed SEED
	CI=1 go test -count=1 -v -timeout 24h -exec "$(CURDIR)/scripts/as-root" ./test/verify -worlds $(N) -seed $(SEED) -odds $(ODDS)

# The image of packetwalk's programs for nodes of any cluster. PUSH=REGISTRY/NAME[:TAG] pushes it, with docker's logins. ARCH=amd64,arm64 builds it for
# both architectures, not only this machine's. LOCK=update locks today's versions of Debian's packages, which come from MIRROR=URL.
BOTH   := amd64,arm64
ARCH   ?= $(if $(LOCK),$(BOTH),$(HOST_ARCH))
release test-release test-image: ARCH = $(BOTH)
LOCK   ?=
MIRROR ?= http://deb.debian.org
IMAGE   = go run ./tools/image -version '$(VERSION)' -ldflags '$(LDFLAGS)' -arch '$(ARCH)' -mirror '$(MIRROR)'

.PHONY: image
image: ## build packetwalk's image for this machine's architecture, or ARCH=amd64,arm64, without Docker: bin/packetwalk-image.tar; PUSH= pushes it
	@$(IMAGE) -lock '$(LOCK)' -push '$(PUSH)'

# The second build uses a copy of the sources, in another directory.
AGAIN := bin/image/again
.PHONY: test-image
test-image: deps image ## build the image twice, compare the archives, and run its programs
	@rm -rf $(AGAIN) && mkdir -p $(AGAIN)/bin
	@git ls-files -coz --exclude-standard | xargs -0 cp --parents -dt $(AGAIN)
	@cd $(AGAIN) && $(IMAGE)
	cmp bin/packetwalk-image.tar $(AGAIN)/bin/packetwalk-image.tar
	cmp bin/packetwalk-image.spdx.json $(AGAIN)/bin/packetwalk-image.spdx.json
	@rm -rf $(AGAIN)
	CI=1 IMAGE=$(CURDIR)/bin/packetwalk-image.tar IMAGE_VERSION='$(VERSION)' go test -count=1 -v -exec "$(CURDIR)/scripts/as-root" \
		-run 'TestWhole$$' ./tools/image

# LEVEL is zstd's: 3 makes it in a minute.
LEVEL ?= 19

.PHONY: lab-archive
lab-archive: deps controlplane calico calico-3.27 build ## all that a lab needs, without compiler or network: bin/lab/packetwalk-lab_linux_ARCH.tar.zst
	@LEVEL=$(LEVEL) scripts/lab-archive '$(VERSION)' $(LAB_ARCH) $(BIN) bin/lab

LAB_IMAGE = bin/lab/packetwalk-lab-image_linux_$(LAB_ARCH).tar

.PHONY: lab-image
lab-image: lab-archive ## the same as an image of a container that brings a lab up: bin/lab/packetwalk-lab-image_linux_ARCH.tar
	@go run ./tools/image -version '$(VERSION)' -arch $(LAB_ARCH) -lab bin/lab/packetwalk-lab_linux_$(LAB_ARCH).tar.zst \
		-root $(BIN)/base/whole.tar -o $(LAB_IMAGE)

.PHONY: test-lab-image
test-lab-image: lab-image ## the image of labs in a container of runc: its published ports, and its end
	CI=1 LAB_IMAGE=$(CURDIR)/$(LAB_IMAGE) go test -count=1 -v -exec "$(CURDIR)/scripts/as-root" -run 'TestLabImage$$' ./test/places

# make release VERSION=v1.2.0 needs a checkout without changes. BASE is where the files will be published. LAB are the architectures of what
# labs need; LAB= leaves it out.
LAB    ?= amd64 arm64
BASE   ?= https://packetwalk.dev/releases/$(VERSION)
RELEASE = go run ./tools/release -version '$(VERSION)' -ldflags '$(LDFLAGS)' -base '$(BASE)' \
	$(if $(LAB),-lab bin/lab) -- $(IMAGE)

.PHONY: release
release: ## what VERSION=v1.2.0 publishes: image, labs, plugin, programs, chart, manifests, notes and their checksums in bin/release
	@go run ./tools/release -version '$(VERSION)' -check
	@$(if $(LAB),rm -rf bin/lab)
	@set -e; for arch in $(LAB); do $(MAKE) --no-print-directory lab-image LAB_ARCH=$$arch EXACT=1; done
	@$(RELEASE)

.PHONY: test-release
test-release: deps ## build a release twice, compare the files, and check that plugin and chart name the image's digest
	@$(MAKE) --no-print-directory release VERSION=v0.0.0-test LAB=
	@rm -rf $(AGAIN) && mkdir -p $(AGAIN)/bin
	@git ls-files -coz --exclude-standard | xargs -0 cp --parents -dt $(AGAIN)
	@$(MAKE) --no-print-directory -C $(AGAIN) release VERSION=v0.0.0-test LAB=
	diff -r bin/release $(AGAIN)/bin/release
	@rm -rf $(AGAIN)
	cd bin/release && sha256sum --quiet -c SHA256SUMS && digest=$$(grep -om1 'sha256:[0-9a-f]*' node.yaml) && \
		for file in *.tar.gz *.tgz; do tar -xzOf $$file | grep -qaF "$$digest" || { echo "$$file lacks $$digest"; exit 1; }; done
