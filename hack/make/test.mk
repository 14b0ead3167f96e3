##@ Single tests

# The simulations have nothing for the race detector to find, and take six times as long under it: one
# goroutine uses a book, or a workload, at a time.
SIMULATION := 'Simulation'

# What a test builds while it runs is compiled before, with its modules: a test may have no network, and its deadlines are
# not for compilers.
.PHONY: prebuild
prebuild: build
	@cd hack/release && go build -o ../../bin/stowage-release .

.PHONY: test-unit
test-unit: ## Run the tests that need no control plane
	@mkdir -p bin; go run ./hack/testrun -only unit -- $(TESTFLAGS)

.PHONY: test-cluster
test-cluster: ## Run the tests on a real control plane
	@mkdir -p bin; go run ./hack/testrun -only cluster -- $(TESTFLAGS)

.PHONY: test-one
test-one: controlplane prebuild $(TOOLS)/helm ## Run the tests of one package (PACKAGE=./test/e2e RUN=TestSpreadPod)
	@go test -count=1 -vet=off -v -parallel 8 -timeout 30m $(TESTFLAGS) $(PACKAGE) $(if $(RUN),-run '^$(RUN)$$')

# Packages of one goroutine have no race.
.PHONY: test-race
test-race: ## Run the unit tests of packages with goroutines or locks under the race detector (the first time, it compiles Kubernetes' libraries anew)
	@$(RACE) -vet=off -skip $(SIMULATION) $(TESTFLAGS) $$(grep -lrE --include='*.go' '\bgo func|\.Go\(|\bsync\.|\batomic\.' internal | xargs dirname | sort -u | sed 's|^|./|')

.PHONY: test-more
test-more: ## Run what CI runs beside make test: installation, situations, hostile tenants, impact, a release's files, the oldest Kubernetes, longer simulations, counts of allocations
	@mkdir -p bin; go run ./hack/testrun -only more -- $(TESTFLAGS)

.PHONY: counts
counts: ## Compare what decisions cost, in allocations and bytes, with docs/design/counts.md (UPDATE=1 writes it)
	@CGO_ENABLED=0 go run ./hack/counts $(if $(UPDATE),-update)

# kube-scheduler's packages are compiled as for the control plane, which shares them.
FILTERS = CGO_ENABLED=0 go test -trimpath -vet=off -count=1

.PHONY: test-filters
test-filters: ## Compare what nodes take a pod with kube-scheduler's own filters, over random pods and nodes (PAIRS=1000000, in 5 minutes)
	@cd hack/controlplane/kubernetes && $(FILTERS) -v -timeout 60m $(TESTFLAGS) ./comparison -pairs $(or $(PAIRS),1000000)

.PHONY: karpenter
karpenter: controlplane ## Build Karpenter with its kwok provider, once
	@$(MAKE) --no-print-directory bin/karpenter

# Karpenter needs a newer Go than the other modules. With GOTOOLCHAIN=auto, the go command downloads the one that go.mod names, as it does a module.
bin/karpenter: $(wildcard hack/karpenter/*)
	@echo "Building Karpenter (once per version; some minutes)"
	@cd hack/karpenter && GOTOOLCHAIN=auto go build -o ../../$@ .

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
test-short: karpenter nodes prebuild bin/scheduler-filters ## Run the shortest cases of test-karpenter, test-node and test-liveness; say so where they cannot run
	@if [ "$$(id -u)" = 0 ] && ! command -v containerd > /dev/null && command -v apt-get > /dev/null; then \
	  echo "Installing what real nodes need"; $(MAKE) --no-print-directory node-packages > bin/apt.txt 2>&1 || true; fi
	@{ go test -count=1 -vet=off -v -short -timeout 15m $(TESTFLAGS) ./test/karpenter ./test/node && \
	  go test -count=1 -vet=off -v -short -timeout 15m -parallel 8 $(TESTFLAGS) ./test/liveness; } > bin/test-short.txt 2>&1 \
	  || { cat bin/test-short.txt; exit 1; }; grep -E '^(ok|--- |NOT RUN)' bin/test-short.txt

.PHONY: soak
soak: controlplane build ## Have tenants and strangers do the worst that is known beside a victim (MINUTES=30; goes on where it was ended, AGAIN=1 begins anew)
	@$(if $(AGAIN),rm -f bin/soak.json)
	@go test -count=1 -v -timeout $$(( $(or $(MINUTES),30) + 20 ))m $(TESTFLAGS) ./test/soak -run 'TestSoak|TestManyPolicies' -minutes $(or $(MINUTES),30) -state $(CURDIR)/bin/soak.json

.PHONY: churn
churn: controlplane build ## Change workloads, policies and nodes all the time, and fail at the first eviction of a pod that is held (MINUTES=10)
	@go test -count=1 -v -timeout $$(( $(or $(MINUTES),10) + 10 ))m $(TESTFLAGS) ./test/soak -run TestNothingHeldIsEvicted -minutes $(or $(MINUTES),10)

.PHONY: test-versions
test-versions: prebuild $(TOOLS)/helm ## Run the tests on each supported Kubernetes, and write its row in docs/support.md (VERSIONS=v1.30.14,...)
	@go run ./hack/versions -only "$(VERSIONS)"

.PHONY: test-long
test-long: controlplane build ## Run the long forms: tens of thousands of histories of each simulation, bursts of all sizes
	@for package in ./internal/spread/ledger ./internal/spread/shortage/spill ./internal/spread/gate; do \
	  go test -count=1 -v -timeout 60m -run 'Simulation$$' $$package -histories 17000 || exit 1; done
	@go test -count=1 -v -timeout 60m -run 'Simulation$$' ./internal/spread/relay -histories 4000
	@for package in ./internal/spread/shortage ./internal/spread/repair ./internal/size/resize ./internal/vm/capacity; do \
	  go test -count=1 -v -timeout 60m -run 'Simulation$$' $$package -histories 3000 || exit 1; done
	@$(MAKE) --no-print-directory test-bursts
	@$(MAKE) --no-print-directory test-shortages
	@$(MAKE) --no-print-directory test-fleet
	@$(MAKE) --no-print-directory test-outage
	@$(MAKE) --no-print-directory test-domains
	@$(MAKE) --no-print-directory test-impact
	@$(MAKE) --no-print-directory test-filters
	@go test -count=1 -v -timeout 60m -run TestBounds ./internal/spread/domain -weights 5 -seats 600
	@go test -count=1 -v -timeout 60m -run 'TestLimited$$' ./internal/spread/sequence -limited-weights 5

.PHONY: test-bursts
test-bursts: controlplane build ## Run the long form of the bursts: all strategies and sizes, with one webhook and with three (8 minutes)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/bursts -run TestSpreadConcurrent -long

.PHONY: test-shortages
test-shortages: controlplane build ## Run the long tests of pools without room (10 minutes)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/shortages

.PHONY: test-impact
test-impact: controlplane build ## Compare what `stowage impact` says of ten random clusters with what becomes of them, and measure it (8 minutes)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/impact -clusters $(or $(CLUSTERS),10) -large

.PHONY: compare
compare: controlplane build ## Compare Stowage with topology spread constraints, the descheduler and others, and print the tables of docs/design/comparison.md (10 minutes)
	@$(MAKE) --no-print-directory bin/descheduler
	@go test -count=1 -v -timeout 30m $(TESTFLAGS) ./test/compare

bin/descheduler: $(wildcard hack/peers/*)
	@echo "Building the descheduler (once per version; some minutes)"
	@cd hack/peers && go build -o ../../$@ sigs.k8s.io/descheduler/cmd/descheduler

.PHONY: test-situations
test-situations: controlplane prebuild ## Run the situations that users meet, and compare what each view says of them (10 minutes)
	@go test -count=1 -vet=off -parallel 6 -timeout 40m $(TESTFLAGS) ./test/situations

.PHONY: test-fleet
test-fleet: controlplane build ## Run the long tests of policies that select hundreds of workloads (15 minutes)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/fleet

.PHONY: test-scaledown
test-scaledown: controlplane build ## Run the tests of scale-downs that keep zones, without the webhook: random walks, other writers, refusals, leaders, a burst (4 minutes; PODS=60000 of one test take a quarter of an hour)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/scaledown -pods $(or $(PODS),600)

.PHONY: test-domains
test-domains: controlplane build ## Run the long tests of pools over zones (2 minutes)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/domains

# In a module of its own, because kube-scheduler is no library of ours. It is compiled as the control plane is, whose packages it shares.
bin/scheduler-filters: $(wildcard hack/controlplane/kubernetes/go.mod hack/controlplane/kubernetes/*/*.go)
	@echo "Building kube-scheduler's filters (once per version)"
	@cd hack/controlplane/kubernetes && CGO_ENABLED=0 go build -trimpath -o ../../../$@ ./scheduler-filters

.PHONY: test-liveness
test-liveness: controlplane build bin/scheduler-filters ## Have random clusters come to rest, and ask kube-scheduler's filters about each pod that waits (SEEDS=40 in 45 minutes, SEED=1 is the first)
	@(cd hack/controlplane/kubernetes && $(FILTERS) $(TESTFLAGS) ./filters)
	@go test -count=1 -v -timeout $$(( 30 + $(or $(SEEDS),40) * 3 ))m -parallel 8 $(TESTFLAGS) ./test/liveness -seeds $(or $(SEEDS),40) -seed $(or $(SEED),1)

.PHONY: test-outage
test-outage: controlplane build ## Run the long tests of pods that are created while no replica answers (6 minutes)
	@go test -count=1 -v -timeout 60m $(TESTFLAGS) ./test/outage

.PHONY: test-turn
test-turn: ## Run one of the long suites, another one for each commit (2 to 30 minutes; CI runs it after presubmit)
	@hack/turn.sh

.PHONY: test-mutants
test-mutants: ## Change the packages that decide, one operator or statement at a time, and see whether their tests notice (PACKAGES=...)
	@go run ./hack/mutants $(PACKAGES)

.PHONY: deflake
deflake: controlplane build ## Run the concurrency tests 20 times under the race detector (the long one 5 times)
	@$(RACE) -count=20 -timeout 60m -run 'Concurrent|Shutdown|Rotation|Term|Election|Panic' ./internal/... ./test/serving
	@$(RACE) -count=5 -timeout 60m -run TestSpreadConcurrent ./test/bursts
	@go test -count=20 -timeout 60m -run 'TestUp' ./test/local

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME (30s)
	@go run ./hack/fuzz -time $(or $(FUZZTIME),30s)
