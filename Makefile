# make demo and make test do all set-up themselves. Run them as root, or as a user with sudo.

VERSION      := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS      := -s -w -X main.version=$(VERSION) -X packetwalk.dev/internal/cli.Version=$(VERSION)
# Packages whose tests run at the same time. They share the kernel, and the claims run whole clusters.
TEST_PARALLEL ?= 2
TEST_TIMEOUT  ?= 30m
FUZZTIME      ?= 10s
FUZZ_PARALLEL ?= 1
SERVICES      ?= 100000
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

export CGO_ENABLED := 0
# For programs and tests alike, so that each package is compiled once.
export GOFLAGS += -trimpath
# A distribution may have set its Go to local, which never downloads the version that go.mod asks for.
export GOTOOLCHAIN ?= auto
SINCE := $(shell date +%s)

.PHONY: help demo test build controlplane calico deps claims bench bench-snat bench-proxy lint fuzz clean
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: deps controlplane build ## the main job, shown step by step
	@SINCE=$(SINCE) scripts/demo.sh

# Tests are built as the caller and run as root. With CI set they fail, not skip, where they cannot run.
test: deps controlplane calico build ## all tests
	go vet ./...
	CI=1 go test -vet=off -p $(TEST_PARALLEL) -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" ./...

build: ## bin/packetwalk and its companions
	@mkdir -p bin
	@echo "building packetwalk"
	@go build -ldflags "$(LDFLAGS)" -o bin/ ./cmd/... github.com/containernetworking/plugins/plugins/meta/portmap
	@ln -f bin/packetwalk bin/kubectl-packetwalk

controlplane: ## upstream's control plane, kubelet and containerd, and what nodes have of Debian, once for all clones (minutes the first time)
	@go run ./tools/controlplane build
	@go run ./tools/controlplane build realnode
	@scripts/base

calico: ## Calico's agent felix, for worlds with policy calico, built once for all clones (minutes the first time)
	@go run ./tools/controlplane build calico

deps: ## system packages that are missing, by apt
	@scripts/deps

claims: deps controlplane calico build ## the table of claims: pass or FAIL
	CI=1 go run ./tools/claims -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root"

bench: deps controlplane calico build ## the figures, medians of several runs
	go build -o bin/bench ./tools/bench
	go test -run '^$$' -bench . -benchtime 5x ./internal/model/walk
	scripts/as-root bin/bench

bench-snat: deps controlplane build ## new outbound flows per second, beside a namespace pair without translation
	go build -o bin/bench ./tools/bench
	scripts/as-root bin/bench snat

bench-proxy: deps controlplane build ## kube-proxy and packetwalk-node side by side, with up to SERVICES services; writes docs/performance.md
	go build -o bin/bench ./tools/bench
	scripts/as-root bin/bench -services $(SERVICES) -page docs/performance.md proxy

lint: ## golangci-lint
	go run $(GOLANGCI_LINT) run --allow-serial-runners ./...

# Inputs that cover more are made smaller ten times at most: without a limit that may take a minute each, and most of FUZZTIME.
fuzz: ## every fuzz target for FUZZTIME, with FUZZ_PARALLEL processes
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u | while read -r dir; do \
		for f in $$(grep -rhoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | cut -c6-); do \
			echo "$$dir $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x -parallel $(FUZZ_PARALLEL) "$$dir"; \
		done; \
	done

clean: ## remove what was built here; the control plane's cache stays
	rm -rf bin

.PHONY: test-modules
test-modules: deps ## the tests of the control plane's own module, and of the Helm chart's
	cd controlplane && go test ./...
	cd controlplane/chart && go test ./...

.PHONY: manifests
manifests: ## deploy/manifests anew, from deploy/chart
	cd controlplane/chart && go test -count=1 -run TestManifests . -update

.PHONY: helm
helm: ## bin/helm, of the version in controlplane/chart/go.mod (minutes the first time)
	@mkdir -p bin
	cd controlplane/chart && go build -o ../../bin/helm helm.sh/helm/v4/cmd/helm

.PHONY: oracle
oracle: deps ## our service proxy against upstream's, both modes, in N random worlds, the first of seed SEED
	cd controlplane/oracle && CI=1 go test -count=1 -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" ./...

.PHONY: oracle-long
oracle-long: deps ## the same in 2,000 worlds with 20 changes each: hours
	cd controlplane/oracle && CI=1 N=$${N:-2000} CHANGES=$${CHANGES:-20} go test -count=1 -v -run TestRandomWorlds -timeout 24h \
		-exec "$(CURDIR)/scripts/as-root" .

# Kubernetes' own tests: which of them run and do not (regular expressions), on how many nodes, and their network (bridge, transparent,
# kubenet or calico); and the page that gets the results.
FOCUS   ?= \[sig-network\].*\[Conformance\]
SKIP    ?=
NODES   ?= 3
NETWORK ?= bridge
PAGE    ?= docs/dev/conformance.md

.PHONY: e2e
e2e: deps controlplane calico build ## Kubernetes' own tests against a lab: FOCUS=, SKIP=, NODES=, NETWORK=
	@go run ./tools/controlplane build e2e
	@go build -o bin/e2e/ ./tools/e2e
	scripts/as-root bin/e2e/e2e -focus '$(FOCUS)' -skip '$(SKIP)' -nodes $(NODES) -network $(NETWORK) -page '$(PAGE)'

.PHONY: test-chart
test-chart: deps controlplane build helm image ## the Helm chart on a lab: it takes over from kube-proxy, is upgraded, and is removed
	CI=1 CHART=1 go test -count=1 -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" -run TestChart ./test/realnode

.PHONY: test-foreign
test-foreign: deps controlplane build helm image ## walks through clusters of others (flannel, CNI's reference plugins, kube-proxy), 15 to 25 minutes; RUN= chooses
	@go run ./tools/controlplane build foreign
	CI=1 FOREIGN=1 go test -count=1 -v -timeout 90m -exec "$(CURDIR)/scripts/as-root" -run '$(RUN)' ./test/foreign

.PHONY: test-proxies
test-proxies: deps controlplane build ## each service proxy changed to each other on a running lab, with connections, 2 to 4 minutes
	CI=1 go test -count=1 -v -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root" -run ServiceProxyChanged ./test/faults -proxies abacadbcbdcda

# The suites of Debian, and whether the machine's caches are used (CACHE=1), for work on what fails there.
SUITES ?= trixie bookworm
CACHE  ?=

.PHONY: test-fresh
test-fresh: deps ## make demo and make test in new roots of Debian, 30 minutes each: SUITES=, CACHE=1, RUN=COMMANDS
	@go build -o bin/fresh/ ./tools/fresh
	scripts/as-root bin/fresh/fresh $(if $(CACHE),-cache) $(if $(RUN),-run '$(RUN)') $(SUITES)

KILLS ?= 1000

.PHONY: test-killed
test-killed: deps ## who writes the service proxy's table of nftables killed KILLS times, at random moments of its syncs
	CI=1 go test -count=1 -v -timeout 2h -exec "$(CURDIR)/scripts/as-root" -run 'TestKilled$$' ./internal/node/proxy/nftables -kills $(KILLS)

# The Debian whose tools (iproute2, nftables, iptables, ipset, conntrack, …) are used by the tests that read or run them. Its root is made by
# mmdebstrap: once a month for a release, once a day for sid.
SUITE   ?= trixie
IN_DEBIAN = -vet=off -count=1 -timeout $(TEST_TIMEOUT) -exec "$(CURDIR)/scripts/as-root $(CURDIR)/scripts/in-debian $(SUITE)"

.PHONY: test-tools
test-tools: deps ## the tests that read or run ip, nft, iptables and their like, with those of another Debian: SUITE=trixie or sid
	CI=1 go test $(IN_DEBIAN) -p $(TEST_PARALLEL) \
		$(addprefix ./internal/,answer/... azure/fabric capture/... cluster/... kernel/... model/... node/... syntax/...)
	CI=1 go test $(IN_DEBIAN) -run 'TestFound|TestWorlds' ./test/verify -worlds 40

.PHONY: test-vm
test-vm: deps controlplane calico build ## labs in a virtual machine with Debian's own kernel: SUITE=, WORLDS=, MODULES=, SHORT=1
	@scripts/deps qemu-system-x86_64:qemu-system-x86 mkfs.ext4:e2fsprogs
	@go test -c -o bin/vm/vm.test ./test/vm
	@go build -o bin/vm/shop/ ./examples/shop/...
	@SUITE='$(SUITE)' WORLDS='$(WORLDS)' MODULES='$(MODULES)' SHORT='$(SHORT)' scripts/as-root scripts/test-vm

# Worlds of verify, the seed of the first, and in how many worlds a random choice is tried with many flows.
N    ?= 1000
SEED ?= 1
ODDS ?= 8

TEXTS ?= 20000

.PHONY: pasted
pasted: ## walks through TEXTS texts as people paste them, against the whole ones, the first of seed SEED: 10 minutes
	go test -count=1 -v -timeout 2h -run TestPasted ./test/verify -texts $(TEXTS) -seed $(SEED)

PACKETS ?= 5000

.PHONY: policies
policies: deps controlplane calico build ## walks of PACKETS packets through random policies that felix enforces, the first of seed SEED: 30 minutes
	CI=1 go test -count=1 -v -timeout 3h -exec "$(CURDIR)/scripts/as-root" ./test/policies -packets $(PACKETS) -seed $(SEED)

.PHONY: verify
verify: deps ## the walk against the kernel in N random worlds, the first of seed SEED
	CI=1 go test -count=1 -v -timeout 24h -exec "$(CURDIR)/scripts/as-root" ./test/verify -worlds $(N) -seed $(SEED) -odds $(ODDS)

# The image of packetwalk's programs for nodes of any cluster. PUSH=REGISTRY/NAME[:TAG] pushes it, with the logins of docker; ARCH=amd64 makes
# it for one architecture alone; LOCK=update takes the versions of Debian's packages that Debian has now; MIRROR=URL is where they come from.
ARCH   ?= amd64,arm64
LOCK   ?=
MIRROR ?= http://deb.debian.org
IMAGE   = go run ./tools/image -version '$(VERSION)' -ldflags '$(LDFLAGS)' -arch '$(ARCH)' -mirror '$(MIRROR)'

.PHONY: image
image: ## packetwalk's own image for amd64 and arm64, without Docker: bin/packetwalk-image.tar; PUSH= pushes it
	@$(IMAGE) -lock '$(LOCK)' -push '$(PUSH)'

# The second time it is built of a copy of the sources, in another folder.
AGAIN := bin/image/again
.PHONY: test-image
test-image: deps image ## the image built twice, which makes the same archive, and its programs run
	@rm -rf $(AGAIN) && mkdir -p $(AGAIN)/bin
	@git ls-files -coz --exclude-standard | xargs -0 cp --parents -dt $(AGAIN)
	@cd $(AGAIN) && $(IMAGE)
	cmp bin/packetwalk-image.tar $(AGAIN)/bin/packetwalk-image.tar
	cmp bin/packetwalk-image.spdx.json $(AGAIN)/bin/packetwalk-image.spdx.json
	@rm -rf $(AGAIN)
	CI=1 IMAGE=$(CURDIR)/bin/packetwalk-image.tar IMAGE_VERSION='$(VERSION)' go test -count=1 -v -exec "$(CURDIR)/scripts/as-root" \
		-run 'TestWhole$$' ./tools/image

# A release: make release VERSION=v1.2.0, in a checkout without changes. BASE is where its files will be published.
BASE   ?= https://packetwalk.dev/releases/$(VERSION)
RELEASE = go run ./tools/release -version '$(VERSION)' -ldflags '$(LDFLAGS)' -base '$(BASE)' -- $(IMAGE)

.PHONY: release
release: ## what VERSION=v1.2.0 publishes: image, plugin, programs, chart, manifests and their checksums in bin/release
	@$(RELEASE)

.PHONY: test-release
test-release: deps ## a release made twice, which gives the same files, and its plugin and chart name the image's digest
	@$(MAKE) --no-print-directory release VERSION=v0.0.0-test
	@rm -rf $(AGAIN) && mkdir -p $(AGAIN)/bin
	@git ls-files -coz --exclude-standard | xargs -0 cp --parents -dt $(AGAIN)
	@$(MAKE) --no-print-directory -C $(AGAIN) release VERSION=v0.0.0-test
	diff -r bin/release $(AGAIN)/bin/release
	@rm -rf $(AGAIN)
	cd bin/release && sha256sum --quiet -c SHA256SUMS && digest=$$(grep -om1 'sha256:[0-9a-f]*' node.yaml) && \
		for file in *_linux_*.tar.gz *.tgz; do tar -xzOf $$file | grep -qaF "$$digest" || { echo "$$file lacks $$digest"; exit 1; }; done
