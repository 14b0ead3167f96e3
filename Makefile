# Everything here needs Go, gcc, git and make, and the Go module proxy. `make`
# alone prints what there is.

# One shell per recipe, and a recipe ends at its first failing command.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

STOWAGE_REPLICAS ?=
NODES            ?=
TESTFLAGS        ?=
VERSION          ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
TOOLS            := bin/tools
LOCAL            := bin/stowage-local
GENERATED        := config/rbac/role.yaml config/crd/bases charts docs/reference docs/stowage-plan.svg '*zz_generated.deepcopy.go'
CACHE            := XDG_CACHE_HOME=$(CURDIR)/bin/cache

.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build and run

.PHONY: build
build: ## Build bin/stowage
	@CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X github.com/stowage-dev/stowage/internal/app.Version=$(VERSION)" -o bin/stowage ./cmd/stowage
	@ln -sf stowage bin/kubectl-stowage

.PHONY: manager
manager: build ## Build, with the name that kubebuilder projects use: bin/manager
	@ln -sf stowage bin/manager

.PHONY: run
run: build ## Run the webhook here, against the current kubeconfig, with certificates from bin/certs
	@test -f bin/certs/tls.crt || { echo "bin/certs/tls.crt is missing: run 'make generate-certs' first" >&2; exit 1; }
	@./bin/stowage serve --cert-dir bin/certs --log-format text

.PHONY: generate-certs
generate-certs: $(LOCAL) ## Make a self-signed certificate for `make run` in bin/certs
	@$(LOCAL) certs bin/certs

##@ A local cluster, without Docker

.PHONY: demo
demo: controlplane build $(LOCAL) ## Show all of it on a cluster of its own (KEEP=1 leaves the cluster up)
	@./hack/demo.sh

.PHONY: up
up: controlplane build $(LOCAL) ## Start a local cluster with Stowage in it (STOWAGE_REPLICAS=3, NODES=file)
	@$(LOCAL) up $(if $(STOWAGE_REPLICAS),--replicas $(STOWAGE_REPLICAS)) $(if $(NODES),--nodes $(NODES))

.PHONY: down
down: $(LOCAL) ## End the local cluster and remove its files
	@$(LOCAL) down

.PHONY: controlplane
controlplane: $(LOCAL) ## Build the control plane into bin/controlplane (minutes, once per version)
	@$(LOCAL) build

.PHONY: $(LOCAL)
$(LOCAL):
	@go build -o $@ ./hack/controlplane

##@ Test

.PHONY: test
# Never from the cache: tests build and run our programs, which the cache does not see.
test: controlplane $(TOOLS)/helm ## Run every test, on a real control plane too (TESTFLAGS=-race)
	@go test -count=1 -timeout 30m $(TESTFLAGS) ./...
	@cd hack/monitoring && go test $(TESTFLAGS) ./...

.PHONY: test-unit
test-unit: ## Run the tests that need no control plane (TESTFLAGS=-race)
	@go test $(TESTFLAGS) $$(go list ./... | grep -v /test/)

.PHONY: deflake
deflake: controlplane ## Run the concurrency tests 20 times under the race detector (the long one 5 times)
	@go test -race -count=20 -timeout 60m -run 'Concurrent|Shutdown|Rotation' -skip TestSpreadConcurrent ./internal/... ./test/e2e
	@go test -race -count=5 -timeout 60m -run TestSpreadConcurrent ./test/e2e

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME (30s)
	@go run ./hack/fuzz -time $(or $(FUZZTIME),30s)

.PHONY: bench
bench: $(TOOLS)/benchstat ## Compare our handler with a plain one, in one run, as ratios
	@go test -c -o bin/admission.test ./internal/admission
	@rm -f bin/bench.txt
	@for i in $$(seq $(or $(COUNT),6)); do \
	  echo "run $$i of $(or $(COUNT),6)"; bin/admission.test -test.run '^$$' -test.bench . >> bin/bench.txt; done
	@$(TOOLS)/benchstat -filter '.unit:(sec/op OR allocs/op)' -col '/impl@(plain stowage)' -row '/pod /size' bin/bench.txt

.PHONY: bench-cluster
bench-cluster: controlplane ## Measure bursts of pods on a real control plane (PODS=500, COUNT=5, STOWAGE_REPLICAS=1, CASES=spread)
	@go run ./hack/bench -pods $(or $(PODS),500) -runs $(or $(COUNT),5) -replicas $(or $(STOWAGE_REPLICAS),1) -cases "$(CASES)"

.PHONY: bench-tracked
bench-tracked: controlplane ## Measure requests and memory for one workload of many pods (PODS=10000, STOWAGE_REPLICAS=1)
	@go run ./hack/bench -tracked $(or $(PODS),10000) -replicas $(or $(STOWAGE_REPLICAS),1)

.PHONY: bench-daemons
bench-daemons: controlplane ## Measure a DaemonSet onto many nodes, and nodes that only heartbeat (NODES=1000, COUNT=3)
	@go run ./hack/bench -daemons $(or $(NODES),1000) -runs $(or $(COUNT),3) -replicas $(or $(STOWAGE_REPLICAS),1)

##@ Check and generate

.PHONY: generate
generate: $(TOOLS)/controller-gen ## Generate manifests and reference pages from the code
	@$(TOOLS)/controller-gen rbac:roleName=stowage paths=./internal/... output:rbac:dir=config/rbac
	@$(TOOLS)/controller-gen object paths=./api/...
	@$(TOOLS)/controller-gen crd paths=./api/... output:crd:dir=config/crd/bases
	@go run ./hack/gendocs .
	@$(MAKE) --no-print-directory picture

.PHONY: picture
picture: ## Draw the README's picture, docs/stowage-plan.svg, with `stowage preview`
	@go run ./cmd/stowage preview -f config/samples/spread-annotation.yaml --replicas 25 -o svg > docs/stowage-plan.svg

.PHONY: lint
lint: $(TOOLS)/golangci-lint ## Run the linters
	@$(CACHE) $(TOOLS)/golangci-lint run ./...

.PHONY: fmt
fmt: ## Format the code
	@gofmt -w $$(git ls-files '*.go')

.PHONY: verify
verify: generate ## Fail if a generated file or a go.mod is not current
	@go mod tidy -diff
	@for m in hack/tools hack/monitoring hack/controlplane/kubernetes hack/controlplane/kwok; do (cd $$m && go mod tidy -diff); done
	@changed="$$(git status --porcelain -- $(GENERATED))"; \
	  if [ -n "$$changed" ]; then echo "generated files are not current; run 'make generate' and commit:"; echo "$$changed"; git --no-pager diff -- $(GENERATED); exit 1; fi

.PHONY: presubmit
presubmit: lint verify test ## Everything that CI runs
	@$(MAKE) test-unit TESTFLAGS=-race

.PHONY: clean
clean: ## End the local cluster and remove bin/ except the control plane
	@if [ -x $(LOCAL) ]; then $(LOCAL) down; fi
	@if [ -d bin ]; then find bin -mindepth 1 -maxdepth 1 ! -name controlplane -exec rm -rf {} +; fi

$(TOOLS)/%: hack/tools/go.mod hack/tools/go.sum
	@echo "Building $* (once per version)"
	@cd hack/tools && go build -o ../../$@ $$(go list -f '{{.ImportPath}}' tool | grep '/$*$$')
