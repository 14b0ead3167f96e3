# Everything here needs Go, gcc, git and make, and the Go module proxy. `make`
# alone prints the targets of a first day, and `make help-all` prints all.

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
# path with a space cannot be in GOFLAGS. Without debug information, which no test and no released program has, compilers
# need a sixth less time. Kubernetes' own packages, which only the control planes of tests have, are compiled without inlining.
export GOFLAGS     := -trimpath -gcflags=all=-dwarf=false '-gcflags=k8s.io/kubernetes/...=-dwarf=false -l' $(if $(filter 1,$(words $(CURDIR))),-toolexec=$(CURDIR)/hack/toolexec.sh) $(GOFLAGS)
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

# The targets of a first day are in this file, and all others in hack/make.
FILES = Makefile $(wildcard hack/make/*.mk)

.PHONY: help
help: ## Print what is here for the first day
	@$(call targets,Makefile)
	@echo; echo "  make help-all prints all targets: images, releases, benchmarks, single tests and checks"

.PHONY: help-all
help-all: ## Print all targets
	@$(call targets,$(FILES))

targets = awk 'BEGIN {FS = ":.*\#\# "} /^\#\#@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*\#\# / {printf "  %-16s %s\n", $$1, $$2}' $(1)

##@ Build and run

.PHONY: build
build: ## Build bin/stowage
	@go build -ldflags "-s -w -X github.com/stowage-dev/stowage/internal/platform/version.Version=$(VERSION)" -o bin/stowage ./cmd/stowage
	@ln -sf stowage bin/kubectl-stowage
	@cp hack/release/kubectl_complete-stowage bin/

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

##@ Test and check

.PHONY: test
test: ## Run the unit tests, and the tests on a real control plane
	@mkdir -p bin; go run ./hack/testrun -- $(TESTFLAGS)

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/actionlint ## Run the linters
	@$(TOOLS)/actionlint
	@! grep -nE '^ *(- )?uses: [^.]' .github/workflows/*.yaml action.yml | grep -vE '@[0-9a-f]{40} # v' || { echo "pin these actions by commit, with the tag as a comment" >&2; exit 1; }
	@GOLANGCI_LINT_CACHE=$(CURDIR)/bin/cache/golangci-lint $(TOOLS)/golangci-lint run ./...

.PHONY: fmt
fmt: ## Format the code
	@gofmt -w $$(git ls-files '*.go')

.PHONY: generate
generate: $(TOOLS)/controller-gen ## Generate manifests and reference pages from the code
	@$(TOOLS)/controller-gen rbac:roleName=stowage paths=./internal/... output:rbac:dir=config/rbac
	@$(TOOLS)/controller-gen object paths=./api/...
	@$(TOOLS)/controller-gen crd paths=./api/... output:crd:dir=config/crd/bases
	@go run ./hack/gendocs .
	@$(MAKE) --no-print-directory picture

.PHONY: presubmit
presubmit: ## Everything that CI runs, with the time that each part takes
	@for part in lint verify test test-more test-race test-short "vulncheck OFFLINE=skip"; do \
	  begin=$$(date +%s); $(MAKE) --no-print-directory $$part; echo "== make $$part: $$(( $$(date +%s) - begin )) s"; done

##@ In a cluster

.PHONY: install
install: ## Install the kinds (CRDs) alone into the cluster of the current kubeconfig
	@$(call cluster)
	@$(KUBECTL) apply --server-side -k config/crd

.PHONY: deploy
deploy: deploy-manifests ## Install all of Stowage, with the image IMG, and wait until it runs
	@$(KUBECTL) -n stowage-system rollout status deployment/stowage-controllers deployment/stowage --timeout=2m

.PHONY: undeploy
undeploy: ## Remove Stowage, its MutatingAdmissionPolicies and the registration first; kinds, policies, the namespace and its Secrets stay
	@$(call cluster)
	@if $(KUBECTL) get mutatingadmissionpolicies.admissionregistration.k8s.io >/dev/null 2>&1; then \
	  for part in gate deletioncosts; do $(KUBECTL) delete --ignore-not-found -k config/$$part; done; fi
	@$(KUBECTL) delete --ignore-not-found -k config/webhook
	@$(KUBECTL) delete --ignore-not-found $(addprefix -f config/manager/,deployment.yaml controllers.yaml config.yaml metrics_service.yaml pdb.yaml resource_quota.yaml flowcontrol.yaml)
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

##@ Other

.PHONY: clean
clean: ## End the local cluster and remove bin/ except the control plane
	@if [ -x $(LOCAL) ]; then $(LOCAL) down; fi
	@if [ -d bin ]; then find bin -mindepth 1 -maxdepth 1 ! -name controlplane -exec rm -rf {} +; fi

include hack/make/*.mk
