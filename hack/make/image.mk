##@ The image

# Each platform compiles all of Stowage.
PLATFORMS ?= linux/amd64,linux/arm64

.PHONY: image
image: ## Build the image into bin/stowage-image.tar, without Docker, and list what is in it (PLATFORMS=linux/amd64,linux/arm64)
	@cd hack/release && go run . -root ../.. -version "$(VERSION)" -revision "$(REVISION)" -created "$(CREATED)" \
	  -platforms "$(PLATFORMS)" -tag "$(IMG)" -o ../../$(ARCHIVE) -sbom ../../bin/stowage-image.cdx.json
	@echo "$(ARCHIVE) has $(IMG); bin/stowage-image.cdx.json lists its modules"

.PHONY: image-push
image-push: ## Build the image and push it to IMG's registry, without Docker (PLATFORMS=linux/amd64,linux/arm64)
	@cd hack/release && go run . -root ../.. -version "$(VERSION)" -revision "$(REVISION)" -created "$(CREATED)" -platforms "$(PLATFORMS)" -push "$(IMG)"

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
