##@ In a cluster, further

.PHONY: deploy-manifests
deploy-manifests: ## Install all of Stowage, with the image IMG, without waiting
	@$(call cluster)
	@$(KUBECTL) kustomize config/default | sed 's|^\( *image: \)stowage:.*|\1$(IMG)|' | $(KUBECTL) apply --server-side -f -

# The platforms of the Linux nodes that there are, separated by commas.
node-platforms = $(KUBECTL) get nodes -l kubernetes.io/os=linux -o jsonpath='{range .items[*]}linux/{.metadata.labels.kubernetes\.io/arch}{"\n"}{end}' | sort -u | paste -sd, -

# The image is named by its digest, so that nobody can replace it in a registry that others may write to. It shares what `make build`
# compiles, if the nodes are of this machine's kind.
.PHONY: push-deploy
push-deploy: ## Build the image for the nodes, push it to the registry of IMG, install all of Stowage, and build its commands (PLATFORMS=linux/amd64,linux/arm64)
	@[[ "$(IMG)" == */* ]] || { echo "name the image with its registry: make push-deploy IMG=REGISTRY/stowage:0.1.0" >&2; exit 1; }
	@$(call cluster)
	@platforms="$(if $(filter file,$(origin PLATFORMS)),$$($(node-platforms)),$(PLATFORMS))"; \
	  [ -n "$$platforms" ] || { echo "the cluster has no Linux node yet: make push-deploy IMG=$(IMG) PLATFORMS=linux/amd64" >&2; exit 1; }; \
	  echo "Building the commands, and the image for $$platforms (some minutes the first time)"; \
	  $(MAKE) --no-print-directory build; \
	  digest=$$($(MAKE) --no-print-directory image-push PLATFORMS="$$platforms" | tail -1); \
	  $(MAKE) --no-print-directory manifests deploy IMG="$$(echo "$(IMG)" | sed 's|:[^/:]*$$||')@$$digest" | grep -v "^kubectl apply"

.PHONY: undeploy-samples
undeploy-samples: ## Remove the samples
	@$(call cluster)
	@$(KUBECTL) delete --ignore-not-found -k config/samples

.PHONY: logs
logs: ## Follow the logs of the replicas
	@$(call cluster)
	@$(KUBECTL) -n stowage-system logs -l app.kubernetes.io/part-of=stowage --prefix --tail=100 -f

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
	@echo "Building the image (some minutes the first time)"
	@$(MAKE) --no-print-directory image PLATFORMS="linux/$$(go env GOHOSTARCH)"
	@$(KIND) load image-archive $(ARCHIVE) --name $(KIND_CLUSTER)
	@$(KIND) export kubeconfig --name $(KIND_CLUSTER)
	@$(MAKE) --no-print-directory deploy
