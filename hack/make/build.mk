##@ Build

.PHONY: manager
manager: build ## Build, with the name that kubebuilder projects use: bin/manager
	@ln -sf stowage bin/manager

.PHONY: controlplane
controlplane: $(LOCAL) ## Download or build the control plane into bin/controlplane, once per version (CONTROLPLANE=build)
	@$(LOCAL) build

.PHONY: pin-controlplane
pin-controlplane: $(LOCAL) ## Write the checksums of the released programs, so that they are downloaded instead of built
	@$(LOCAL) pin

.PHONY: $(LOCAL)
$(LOCAL):
	@go build -o $@ ./hack/controlplane
