##@ Benchmarks

.PHONY: bench
bench: $(TOOLS)/benchstat ## Compare our handler with a plain one, in one run, as ratios
	@go test -c -o bin/admission.test ./internal/admission
	@rm -f bin/bench.txt
	@for i in $$(seq $(or $(COUNT),6)); do \
	  echo "run $$i of $(or $(COUNT),6)"; bin/admission.test -test.run '^$$' -test.bench . >> bin/bench.txt; done
	@$(TOOLS)/benchstat -filter '.unit:(sec/op OR allocs/op)' -col '/impl@(plain stowage)' -row '/pod /size' bin/bench.txt

.PHONY: bench-model
bench-model: ## Play bursts of pods, and creates of many users, in a model of a machine with two cores, to compare designs of the ledger
	@go test ./internal/spread/ledger -run '^$$' -bench 'Burst$$|Load$$' -benchtime 1x

.PHONY: bench-cluster
bench-cluster: controlplane ## Measure bursts of pods on a real control plane (PODS=500, COUNT=5, STOWAGE_REPLICAS=1, CONTROLLERS=0, CASES=spread, DEPLOYMENTS=1, UNSCHEDULED=1: creation alone, SERVICE=by-request|by-connection|affinity, AGAINST=commit, PROFILES=directory)
	@go run ./hack/bench -pods $(or $(PODS),500) -runs $(or $(COUNT),5) -replicas $(or $(STOWAGE_REPLICAS),1) -controllers $(or $(CONTROLLERS),0) -cases "$(CASES)" -deployments $(or $(DEPLOYMENTS),1) $(if $(UNSCHEDULED),-unscheduled) -service "$(SERVICE)" -against "$(AGAINST)" -profiles "$(PROFILES)"

USERS ?= 10,50,200,500

.PHONY: bench-users
bench-users: controlplane ## Measure creates of pods by so many users at once (USERS=10,50,200,500, PODS=1000, COUNT=3, STOWAGE_REPLICAS=1, CASES=spread, SERVICE=by-request|by-connection|affinity)
	@go run ./hack/bench -users $(USERS) -pods $(or $(PODS),1000) -runs $(or $(COUNT),3) -replicas $(or $(STOWAGE_REPLICAS),1) -cases "$(CASES)" -service "$(SERVICE)"

.PHONY: bench-scheduling
bench-scheduling: controlplane ## Measure pods that are created and scheduled beside gated pods, and with an extended resource (PODS=500, COUNT=5, STOWAGE_REPLICAS=1)
	@go run ./hack/bench -scheduling -pods $(or $(PODS),500) -runs $(or $(COUNT),5) -replicas $(or $(STOWAGE_REPLICAS),1) -service "$(SERVICE)"

.PHONY: bench-tracked
bench-tracked: controlplane ## Measure requests and memory for one workload of many pods (PODS=10000, STOWAGE_REPLICAS=1)
	@go run ./hack/bench -tracked $(or $(PODS),10000) -replicas $(or $(STOWAGE_REPLICAS),1)

.PHONY: bench-daemons
bench-daemons: controlplane ## Measure a DaemonSet onto many nodes, and nodes that only heartbeat (NODES=1000, COUNT=3, CASES=OnCreate)
	@go run ./hack/bench -daemons $(or $(NODES),1000) -runs $(or $(COUNT),3) -replicas $(or $(STOWAGE_REPLICAS),1) -cases "$(CASES)"

.PHONY: bench-scale
bench-scale: controlplane ## Measure a large cluster: memory, CPU, starts, latency (PODS=20000, NODES=2000, RATE=100, STOWAGE_REPLICAS=3)
	@go run ./hack/bench -scale $(or $(PODS),20000) -scale-nodes $(or $(NODES),2000) -scale-rate $(or $(RATE),100) -replicas $(or $(STOWAGE_REPLICAS),3)

.PHONY: bench-idle
bench-idle: controlplane ## Measure what workloads cost while nothing happens (WORKLOADS=10000, NODES=300, FULL=1: two of three pools have no room, POLICY=1: one ClusterSpreadPolicy, STOWAGE_REPLICAS=1)
	@go run ./hack/bench -idle $(or $(WORKLOADS),10000) $(if $(FULL),-full -minutes 10) $(if $(POLICY),-policy) -scale-nodes $(or $(NODES),300) -replicas $(or $(STOWAGE_REPLICAS),1)

.PHONY: bench-status
bench-status: controlplane ## Measure how late a status is beside pods of another namespace that change (PODS=2000, NODES=90)
	@go run ./hack/bench -status $(or $(PODS),2000) -scale-nodes $(or $(NODES),90)
