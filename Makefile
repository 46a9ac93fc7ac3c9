# Everything a contributor does starts here; `make help` lists it.
# Two targets do all their own set-up: `make demo` and `make test`.

.DEFAULT_GOAL := help
SHELL := /bin/bash
LAB := cd sanity-tests && go run ./cmd/lab

# One set of flags for all that is compiled of Go, the lab's programs included, or it is
# compiled twice. Nothing of it needs C.
export CGO_ENABLED := 0
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell go env GOFLAGS 2>/dev/null)) -trimpath)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##### Set-up

# What cannot be had as a Go module or a crate. The lab runs containers with runc,
# joins nodes with iproute2 and nftables, and its storage makes file systems. The tests of moves
# compare with rsync.
DEBIAN_PACKAGES := btrfs-progs busybox-static e2fsprogs iproute2 make mount nftables rsync runc util-linux xfsprogs

.PHONY: deps
deps: ## Install the Debian packages the lab needs (as root), or say which are missing
	@missing=$$(for p in $(DEBIAN_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ]; then apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends $$missing; \
	else echo "missing Debian packages; as root: apt-get install" $$missing; fi

##### Demo

.PHONY: demo demo-down
demo: deps ## Start clusters, storage and driver, and show a volume's life step by step
	@echo "compiling the demo itself (a minute or two the first time)"
	@cd sanity-tests && go run ./cmd/demo

demo-down: lab-down ## Take down what the demo started

##### Build

.PHONY: build image release lint lint-go fmt
build: ## Build the driver (release)
	cargo build --locked --release --package liqo-csi

# IMAGE=registry/name:tag names it otherwise than the chart does, and PUSH=1 pushes it there. With `make release`, the
# chart in dist names it too.
image: ## Build the image, without Docker, and write dist/liqo-csi-image-….tar, or push it: IMAGE=registry/name:tag PUSH=1
	@cd sanity-tests && go run ./cmd/release image $(if $(IMAGE),-name '$(IMAGE)') $(if $(PUSH),-push)

release: ## Make all that is published, in dist/: images, chart, programs, SBOM, list of images, checksums
	@cd sanity-tests && go run ./cmd/release $(if $(IMAGE),-name '$(IMAGE)') $(if $(PUSH),-push)

lint: lint-go ## Check formatting and lints of Rust and Go
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@# What a build of the workspace has by its feature testkit, a release has not.
	cargo check --locked --package liqo-csi

lint-go: ## Check formatting and lints of Go alone
	@badly=$$(gofmt -l sanity-tests); [ -z "$$badly" ] || { echo "not formatted, run make fmt:" $$badly; exit 1; }
	@for module in sanity-tests sanity-tests/conformance sanity-tests/reference sanity-tests/fabrics sanity-tests/components/coredns sanity-tests/components/policies; do (cd $$module && go vet ./...) || exit 1; done

fmt: ## Format Rust and Go
	cargo fmt --all
	gofmt -w sanity-tests

.PHONY: chart-manifests
chart-manifests: ## Render deploy/manifests, and what connect makes, from the Helm chart
	cd sanity-tests && go run ./cmd/chart-manifests

##### Test

.PHONY: test test-all
# Not with go run, which would end on a signal before the closing lines.
RUN_SUITES := mkdir -p .lab && cd sanity-tests && go build -buildvcs=false -o ../.lab/suites ./cmd/suites && exec ../.lab/suites

test: deps ## What CI runs: all unit tests, and of those in the lab what SUITES=-list shows
	@$(RUN_SUITES) $(SUITES)

test-all: deps ## Everything, for hours: all crash points, long chaos; SUITES='-from liqo' goes on there
	@$(RUN_SUITES) -all $(SUITES)

##### Lab: two real clusters on this machine (docs/lab.md)

.PHONY: lab-build lab-up lab-down lab-status
lab-build: deps ## Build what the lab runs, unless it is in the cache
	$(LAB) build

lab-up: deps ## Start the clusters home and remote, with storage in them
	$(LAB) up

lab-down: ## Take the lab down and leave the machine as it was
	$(LAB) down

lab-status: ## What of the lab is running
	$(LAB) status

.PHONY: lab-driver
lab-driver: ## Build the driver and install it in the running lab's cluster home
	cd sanity-tests && go run ./cmd/driver install

##### Bench

.PHONY: bench
bench: ## Race class liqo against the real classes in the running lab, on a release that it installs; BENCH='-n 1,100' narrows it
	cd sanity-tests && go run ./cmd/bench $(BENCH)

.PHONY: bench-fabric
bench-fabric: ## Race pods that the fabric runs against the same pods made there, in the running lab; BENCH='-n 1,100'
	cd sanity-tests && go run ./cmd/bench-fabric $(BENCH)

.PHONY: bench-move
bench-move: deps ## Race the engine of moves against rsync and cp; BENCH='A --runs 3 --cold' narrows it
	cargo bench --locked -p liqo-csi-mover --bench copy -- $(BENCH)
