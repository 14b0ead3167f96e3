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
GENERATED        := config/rbac/role.yaml config/crd/bases charts docs/reference docs/pictures '*zz_generated.deepcopy.go'

# One set of build flags for linters, tests, tools and programs: they then share what the build cache has of the
# Kubernetes libraries. Only the race detector needs cgo, and a build of its own. hack/toolexec.sh makes builds faster; a
# path with a space cannot be in GOFLAGS.
export GOFLAGS     := -trimpath $(if $(filter 1,$(words $(CURDIR))),-toolexec=$(CURDIR)/hack/toolexec.sh) $(GOFLAGS)
export CGO_ENABLED := $(if $(findstring -race,$(TESTFLAGS)),1,0)
RACE               := CGO_ENABLED=1 go test -race

# The image, by the name that a cluster pulls it with, and the programs that reach for one.
IMG              ?= stowage:0.1.0
KUBECTL          ?= $(shell command -v kubectl 2>/dev/null || echo bin/kubectl)
KIND             ?= kind
KIND_CLUSTER     ?= stowage
DOCKER           ?= docker
ARCHIVE          := bin/stowage-image.tar
REVISION          = $(shell git rev-parse HEAD 2>/dev/null)
CREATED           = $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# What a recipe needs: a program, a Docker daemon, a cluster.
need    = command -v $(1) >/dev/null 2>&1 || { echo "make $@ needs $(1), which is not on the PATH$(if $(2),: $(2))" >&2; exit 1; }
daemon  = $(call need,$(DOCKER),$(1)); $(DOCKER) info >/dev/null 2>&1 || { echo "make $@ needs a Docker daemon, and '$(DOCKER) info' reaches none$(if $(1),: $(1))" >&2; exit 1; }
cluster = $(call need,$(KUBECTL),install it or run 'make controlplane' and export PATH=$(CURDIR)/bin:\$$PATH); $(KUBECTL) version --request-timeout=10s >/dev/null 2>&1 || { echo "make $@ needs a cluster, and '$(KUBECTL) version' reaches none: check the kubeconfig, or run 'make up' and export KUBECONFIG=$(CURDIR)/bin/cluster/kubeconfig" >&2; exit 1; }
.DEFAULT_GOAL := help

.PHONY: help
help: ## Print this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Build and run

.PHONY: build
build: ## Build bin/stowage
	@go build -ldflags "-s -w -X github.com/stowage-dev/stowage/internal/platform/version.Version=$(VERSION)" -o bin/stowage ./cmd/stowage
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

##@ The image

.PHONY: image
image: ## Build the image for amd64 and arm64 into bin/stowage-image.tar, without Docker, and list what is in it
	@cd hack/release && go run . -root ../.. -version "$(VERSION)" -revision "$(REVISION)" -created "$(CREATED)" \
	  -tag "$(IMG)" -o ../../$(ARCHIVE) -sbom ../../bin/stowage-image.cdx.json
	@echo "$(ARCHIVE) has $(IMG); bin/stowage-image.cdx.json lists its modules"

.PHONY: image-push
image-push: ## Build the image and push it to IMG's registry, without Docker
	@cd hack/release && go run . -root ../.. -version "$(VERSION)" -revision "$(REVISION)" -created "$(CREATED)" -push "$(IMG)"

.PHONY: docker-build
docker-build: ## Build the image IMG with Docker
	@$(call daemon,'make image' needs none)
	@$(DOCKER) build --build-arg VERSION="$(VERSION)" --build-arg REVISION="$(REVISION)" -t "$(IMG)" .

.PHONY: docker-push
docker-push: ## Push the image IMG with Docker
	@$(call daemon,'make image-push' needs none)
	@$(DOCKER) push "$(IMG)"

##@ A release

RELEASE     = v$(shell sed -n 's/^version: //p' charts/stowage/Chart.yaml)
RELEASE_DIR = bin/release

.PHONY: release
release: $(TOOLS)/helm ## Build all files of a release into bin/release: image, manifests, chart, command line, checksums (REGISTRY=of the image)
	@[ -z "$$(git status --porcelain)" ] || { echo "the tree has changes, which a release must not have: commit them first" >&2; exit 1; }
	@rm -rf $(RELEASE_DIR)
	@cd hack/release && go run . -root ../.. -version "$(RELEASE)" -revision "$(REVISION)" -created "$(CREATED)" \
	  -registry "$(REGISTRY)" -helm ../../$(TOOLS)/helm -dir ../../$(RELEASE_DIR)
	@cat $(RELEASE_DIR)/checksums.txt

# The second build is of a clone elsewhere and has a build cache of its own.
.PHONY: release-dry-run
release-dry-run: controlplane vulncheck build release ## Look for vulnerabilities, build a release twice, compare, and install manifest, chart and plugin from it (half an hour; OFFLINE=skip)
	@again=$$(mktemp -d); trap 'rm -rf "$$again"' EXIT; \
	  git clone --quiet . "$$again/stowage"; mkdir -p "$$again/stowage/$(TOOLS)"; cp $(TOOLS)/helm "$$again/stowage/$(TOOLS)/"; \
	  touch "$$again/stowage/$(TOOLS)/helm"; GOCACHE="$$again/cache" $(MAKE) --no-print-directory -C "$$again/stowage" release > /dev/null; \
	  diff $(RELEASE_DIR)/checksums.txt "$$again/stowage/$(RELEASE_DIR)/checksums.txt"
	@echo "Both builds have the same checksums"
	@go test -count=1 -timeout 10m ./test/install -run TestRelease -release $(CURDIR)/$(RELEASE_DIR)

.PHONY: manifests
manifests: ## Write bin/install.yaml and bin/uninstall.yaml, for kubectl alone, with the image IMG
	@mkdir -p bin; cd hack/release && go run . -root ../.. -version "$(VERSION)" -manifests ../../bin -tag "$(IMG)"
	@echo "kubectl apply --server-side -f bin/install.yaml"

##@ In a cluster

.PHONY: install
install: ## Install the kinds (CRDs) alone into the cluster of the current kubeconfig
	@$(call cluster)
	@$(KUBECTL) apply --server-side -k config/crd

.PHONY: deploy
deploy: deploy-manifests ## Install all of Stowage, with the image IMG, and wait until it runs
	@$(KUBECTL) -n stowage-system rollout status deployment/stowage --timeout=2m

.PHONY: deploy-manifests
deploy-manifests: ## Install all of Stowage, with the image IMG, without waiting
	@$(call cluster)
	@$(KUBECTL) kustomize config/default | sed 's|^\( *image: \)stowage:.*|\1$(IMG)|' | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Remove Stowage, its registration first; kinds, policies, the namespace and its Secrets stay
	@$(call cluster)
	@$(KUBECTL) delete --ignore-not-found -k config/webhook
	@$(KUBECTL) delete --ignore-not-found $(addprefix -f config/manager/,deployment.yaml config.yaml metrics_service.yaml pdb.yaml resource_quota.yaml flowcontrol.yaml)
	@$(KUBECTL) delete --ignore-not-found -k config/rbac
	@if $(KUBECTL) get crd certificates.cert-manager.io >/dev/null 2>&1; then $(KUBECTL) delete --ignore-not-found -f config/certmanager/certificate.yaml; fi

.PHONY: uninstall
uninstall: ## Remove the kinds, and with them every PodDistributor and FlexDaemonsetTemplate (CONFIRM=yes)
	@$(call cluster)
	@[ "$(CONFIRM)" = yes ] || { echo "this deletes every PodDistributor and FlexDaemonsetTemplate of the cluster: make uninstall CONFIRM=yes" >&2; exit 1; }
	@$(KUBECTL) delete --ignore-not-found -k config/crd

.PHONY: deploy-samples
deploy-samples: build ## Apply the samples and wait until each is as it should be
	@$(call cluster)
	@$(KUBECTL) apply -k config/samples
	@$(KUBECTL) -n default rollout status deployment/nginx-deployment deployment/peer-pod daemonset/example-daemonset --timeout 2m
	@$(KUBECTL) -n spread-demo rollout status deployment/alpine --timeout 2m
	@bin/stowage status -A --wait --timeout 2m

.PHONY: undeploy-samples
undeploy-samples: ## Remove the samples
	@$(call cluster)
	@$(KUBECTL) delete --ignore-not-found -k config/samples

.PHONY: logs
logs: ## Follow the logs of the replicas
	@$(call cluster)
	@$(KUBECTL) -n stowage-system logs -l app.kubernetes.io/name=stowage --prefix --tail=100 -f

.PHONY: quickstart
quickstart: build ## Run the commands of docs/quickstart.md in the cluster, where Stowage is installed
	@$(call cluster)
	@hack/quickstart.sh

.PHONY: kind-cluster
kind-cluster: ## Make a kind cluster with the nodes of the samples (needs Docker)
	@$(call need,$(KIND),see https://kind.sigs.k8s.io)
	@$(call daemon,'make up' starts a cluster without it)
	@$(KIND) create cluster --name $(KIND_CLUSTER) --config hack/kind.yaml

.PHONY: kind-deploy
kind-deploy: ## Build the image, load it into the kind cluster and install all of Stowage there
	@$(call need,$(KIND),see https://kind.sigs.k8s.io)
	@$(call daemon,'make up' starts a cluster without it)
	@$(MAKE) --no-print-directory image
	@$(KIND) load image-archive $(ARCHIVE) --name $(KIND_CLUSTER)
	@$(KIND) export kubeconfig --name $(KIND_CLUSTER)
	@$(MAKE) --no-print-directory deploy

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
controlplane: $(LOCAL) ## Download or build the control plane into bin/controlplane, once per version (CONTROLPLANE=build)
	@$(LOCAL) build

.PHONY: pin-controlplane
pin-controlplane: $(LOCAL) ## Write the checksums of the released programs, so that they are downloaded instead of built
	@$(LOCAL) pin

.PHONY: $(LOCAL)
$(LOCAL):
	@go build -o $@ ./hack/controlplane

##@ Test

# The simulations have nothing for the race detector to find, and take six times as long under it: one
# goroutine uses a book, or a workload, at a time.
SIMULATION := 'TestSimulation'
TESTED     := {{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}
UNIT        = $$(go list -f '$(TESTED)' ./... | grep -v /test/)
CLUSTER     = $$(go list -f '$(TESTED)' ./test/... | grep -v -e /test/karpenter -e /test/node -e /test/shortages)

.PHONY: test
test: test-unit test-cluster ## Run the unit tests, and the tests on a real control plane

# Tests that build and run our programs never use the test cache, because it does not see the programs'
# sources; nor do tests that read files outside of their own module. `make lint` vets the packages, so -vet=off.
# What a test builds while it runs is compiled before, with its modules: a test may have no network, and its deadlines are
# not for compilers.
.PHONY: prebuild
prebuild: build
	@cd hack/release && go build -o ../../bin/stowage-release .

.PHONY: test-unit
test-unit: build ## Run the tests that need no control plane, with the race detector
	@$(RACE) -vet=off -skip $(SIMULATION) $(TESTFLAGS) $(UNIT)
	@go test -vet=off -run $(SIMULATION) $(TESTFLAGS) ./internal/spread/ledger ./internal/spread/shortage/spill
	@(cd hack/monitoring && go test -count=1 $(TESTFLAGS) ./...)
	@(cd hack/release && go test -count=1 $(TESTFLAGS) ./...)
	@(cd hack/prose && go test $(TESTFLAGS) ./...)
	@(cd hack/docs && go test $(TESTFLAGS) ./links)

.PHONY: test-cluster
test-cluster: controlplane prebuild $(TOOLS)/helm ## Run the tests on a real control plane
	@go test -count=1 -vet=off -timeout 30m $(TESTFLAGS) $(CLUSTER)

.PHONY: karpenter
karpenter: controlplane ## Build Karpenter with its kwok provider, once
	@$(MAKE) --no-print-directory bin/karpenter

bin/karpenter: $(wildcard hack/karpenter/*)
	@echo "Building Karpenter (once per version; some minutes)"
	@cd hack/karpenter && go build -o ../../$@ .

.PHONY: test-karpenter
test-karpenter: karpenter build ## Run the tests with Karpenter (CYCLES=2 scale-ups and scale-downs, ORDERS=2 of pods)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/karpenter -cycles $(or $(CYCLES),2) -orders $(or $(ORDERS),2)

.PHONY: nodes
nodes: controlplane $(TOOLS)/helm ## Build kubelet and kube-proxy for real nodes, once
	@$(LOCAL) build --nodes

.PHONY: test-node
test-node: nodes prebuild ## Run the tests on two real nodes (as root, with Debian's containerd, runc and CNI plugins)
	@go test -count=1 -v -timeout 15m $(TESTFLAGS) ./test/node

.PHONY: node-packages
node-packages: ## Install what real nodes need from Debian (as root)
	@apt-get update
	@DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
	  containerd runc containernetworking-plugins iptables nftables conntrack iproute2 kmod

.PHONY: test-short
test-short: karpenter nodes prebuild ## Run the shortest cases of test-karpenter and test-node; say so where they cannot run
	@if [ "$$(id -u)" = 0 ] && ! command -v containerd > /dev/null && command -v apt-get > /dev/null; then \
	  echo "Installing what real nodes need"; $(MAKE) --no-print-directory node-packages > bin/apt.txt 2>&1 || true; fi
	@go test -count=1 -vet=off -v -short -timeout 15m $(TESTFLAGS) ./test/karpenter ./test/node > bin/test-short.txt 2>&1 \
	  || { cat bin/test-short.txt; exit 1; }; grep -E '^(ok|--- |NOT RUN)' bin/test-short.txt

.PHONY: test-versions
test-versions: prebuild $(TOOLS)/helm ## Run the tests on each supported Kubernetes, and write its row in docs/support.md (VERSIONS=v1.30.14,...)
	@go run ./hack/versions -only "$(VERSIONS)"

.PHONY: test-long
test-long: controlplane build ## Run the long forms: tens of thousands of histories of each simulation, bursts of all sizes
	@go test -count=1 -v -timeout 60m -run 'TestSimulation$$' ./internal/spread/ledger -histories 17000
	@go test -count=1 -v -timeout 60m -run 'TestSimulation$$' ./internal/spread/shortage/spill -histories 17000
	@go test -count=1 -timeout 60m -run TestSpreadConcurrent ./test/bursts -long
	@$(MAKE) --no-print-directory test-shortages

.PHONY: test-shortages
test-shortages: controlplane build ## Run the long tests of pools without room (10 minutes)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/shortages

.PHONY: deflake
deflake: controlplane build ## Run the concurrency tests 20 times under the race detector (the long one 5 times)
	@$(RACE) -count=20 -timeout 60m -run 'Concurrent|Shutdown|Rotation|Term|Election|Panic' ./internal/... ./test/e2e
	@$(RACE) -count=5 -timeout 60m -run TestSpreadConcurrent ./test/bursts
	@go test -count=20 -timeout 60m -run 'TestUp' ./test/local

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

.PHONY: bench-model
bench-model: ## Play bursts of pods in a model of a machine with two cores, to compare designs of the ledger
	@go test ./internal/spread/ledger -run '^$$' -bench 'Burst$$' -benchtime 1x

.PHONY: bench-cluster
bench-cluster: controlplane ## Measure bursts of pods on a real control plane (PODS=500, COUNT=5, STOWAGE_REPLICAS=1, CASES=spread, SERVICE=by-request, AGAINST=commit)
	@go run ./hack/bench -pods $(or $(PODS),500) -runs $(or $(COUNT),5) -replicas $(or $(STOWAGE_REPLICAS),1) -cases "$(CASES)" -service "$(SERVICE)" -against "$(AGAINST)"

.PHONY: bench-tracked
bench-tracked: controlplane ## Measure requests and memory for one workload of many pods (PODS=10000, STOWAGE_REPLICAS=1)
	@go run ./hack/bench -tracked $(or $(PODS),10000) -replicas $(or $(STOWAGE_REPLICAS),1)

.PHONY: bench-daemons
bench-daemons: controlplane ## Measure a DaemonSet onto many nodes, and nodes that only heartbeat (NODES=1000, COUNT=3, CASES=OnCreate, PPROF=localhost:6060)
	@go run ./hack/bench -daemons $(or $(NODES),1000) -runs $(or $(COUNT),3) -replicas $(or $(STOWAGE_REPLICAS),1) -cases "$(CASES)" -pprof "$(PPROF)"

.PHONY: bench-scale
bench-scale: controlplane ## Measure a large cluster: memory, CPU, starts, latency (PODS=20000, NODES=2000, RATE=100, STOWAGE_REPLICAS=3)
	@go run ./hack/bench -scale $(or $(PODS),20000) -scale-nodes $(or $(NODES),2000) -scale-rate $(or $(RATE),100) -replicas $(or $(STOWAGE_REPLICAS),3)

.PHONY: bench-order
bench-order: controlplane ## Measure what the order of pods over pools means to the scheduler (PODS=500, COUNT=5, NODES=300, SIZE=cpu=4,memory=16Gi)
	@go run ./hack/bench -order -pods $(or $(PODS),500) -runs $(or $(COUNT),5) -order-nodes $(or $(NODES),300) $(if $(SIZE),-order-size "$(SIZE)")

##@ Check and generate

.PHONY: generate
generate: $(TOOLS)/controller-gen ## Generate manifests and reference pages from the code
	@$(TOOLS)/controller-gen rbac:roleName=stowage paths=./internal/... output:rbac:dir=config/rbac
	@$(TOOLS)/controller-gen object paths=./api/...
	@$(TOOLS)/controller-gen crd paths=./api/... output:crd:dir=config/crd/bases
	@go run ./hack/gendocs .
	@$(MAKE) --no-print-directory picture

.PHONY: picture
picture: ## Draw docs/pictures/plan.svg with `stowage preview`
	@go run ./cmd/stowage preview -f config/samples/spread-annotation.yaml --replicas 25 -o svg > docs/pictures/plan.svg

.PHONY: lint
lint: prose $(TOOLS)/golangci-lint $(TOOLS)/actionlint ## Run the linters
	@$(TOOLS)/actionlint
	@! grep -nE '^ *(- )?uses: [^.]' .github/workflows/*.yaml action.yml | grep -vE '@[0-9a-f]{40} # v' || { echo "pin these actions by commit, with the tag as a comment" >&2; exit 1; }
	@GOLANGCI_LINT_CACHE=$(CURDIR)/bin/cache/golangci-lint $(TOOLS)/golangci-lint run ./...

.PHONY: prose
prose: ## Check the pages, comments and messages against the rules for text in CONTRIBUTING
	@cd hack/prose && go vet . && go run . -root ../..

.PHONY: docs
docs: ## Build the site of the documents in bin/docs with Hugo, and check its links
	@cd hack/docs && go mod tidy -diff && go vet ./... && go test ./links && go run . -o ../../bin/docs
	@echo "The site is in bin/docs: open bin/docs/index.html"

.PHONY: fmt
fmt: ## Format the code
	@gofmt -w $$(git ls-files '*.go')

.PHONY: verify
verify: generate ## Fail if a generated file or a go.mod is not current
	@go mod tidy -diff
	@for m in hack/tools hack/actionlint hack/prose hack/monitoring hack/release hack/vulncheck hack/karpenter hack/controlplane/kubernetes hack/controlplane/kwok hack/controlplane/versions/*; do (cd $$m && go mod tidy -diff); done
	@changed="$$(git status --porcelain -- $(GENERATED))"; \
	  if [ -n "$$changed" ]; then echo "generated files are not current; run 'make generate' and commit:"; echo "$$changed"; git --no-pager diff -- $(GENERATED); exit 1; fi

.PHONY: vulncheck
vulncheck: $(TOOLS)/govulncheck ## Compare what the code reaches with the Go vulnerability database (OFFLINE=skip where that is out of reach)
	@status=0; $(TOOLS)/govulncheck ./... > bin/vulncheck.txt 2>&1 || status=$$?; \
	  if [ $$status != 0 ] && [ "$(OFFLINE)" = skip ] && grep -q 'fetching vulnerabilities' bin/vulncheck.txt; then \
	    echo "NOT CHECKED for vulnerabilities: the database is out of reach"; exit 0; fi; \
	  cat bin/vulncheck.txt; exit $$status

.PHONY: presubmit
presubmit: ## Everything that CI runs, with the time that each part takes
	@for part in lint verify test-unit test-cluster test-short "vulncheck OFFLINE=skip"; do \
	  begin=$$(date +%s); $(MAKE) --no-print-directory $$part; echo "== make $$part: $$(( $$(date +%s) - begin )) s"; done

.PHONY: clean
clean: ## End the local cluster and remove bin/ except the control plane
	@if [ -x $(LOCAL) ]; then $(LOCAL) down; fi
	@if [ -d bin ]; then find bin -mindepth 1 -maxdepth 1 ! -name controlplane -exec rm -rf {} +; fi

$(TOOLS)/govulncheck: hack/vulncheck/go.mod hack/vulncheck/go.sum
	@echo "Building govulncheck (once per version)"
	@cd hack/vulncheck && go build -o ../../$@ golang.org/x/vuln/cmd/govulncheck

# Of a module of its own, because it needs another version of a YAML library than the other tools.
$(TOOLS)/actionlint: hack/actionlint/go.mod hack/actionlint/go.sum
	@echo "Building actionlint (once per version)"
	@cd hack/actionlint && go build -o ../../$@ github.com/rhysd/actionlint/cmd/actionlint

$(TOOLS)/%: hack/tools/go.mod hack/tools/go.sum
	@echo "Building $* (once per version)"
	@cd hack/tools && go build -o ../../$@ $$(go list -f '{{.ImportPath}}' tool | grep '/$*$$')
