##@ Single checks

.PHONY: picture
picture: ## Draw docs/pictures/plan.svg with `stowage preview`
	@go run ./cmd/stowage preview -f config/samples/spread-annotation.yaml --replicas 25 -o svg > docs/pictures/plan.svg

.PHONY: docs
docs: playground ## Build the site in bin/docs: the documents, their search and the playground; and check its links
	@cd hack/docs && go vet ./... && go test ./... && go run . -o $(or $(SITE),../../bin/docs) $(SITEFLAGS)
	@echo "The site is in $(or $(SITE),bin/docs): open its index.html"

.PHONY: docs-versions
docs-versions: ## Build the site in bin/site with a directory for main and for each of the last releases
	@./hack/docs/versions.sh

.PHONY: verify
verify: generate ## Fail if a generated file or a go.mod is not current
	@go mod tidy -diff
	@for m in hack/tools hack/actionlint hack/monitoring hack/release hack/vulncheck hack/browser hack/docs hack/karpenter hack/peers hack/controlplane/kubernetes hack/controlplane/kwok hack/controlplane/versions/*; do (cd $$m && GOTOOLCHAIN=auto go mod tidy -diff); done
	@changed="$$(git status --porcelain -- $(GENERATED))"; \
	  if [ -n "$$changed" ]; then echo "generated files are not current; run 'make generate' and commit:"; echo "$$changed"; git --no-pager diff -- $(GENERATED); exit 1; fi

.PHONY: vulncheck
vulncheck: $(TOOLS)/govulncheck ## Compare what the code reaches with the Go vulnerability database (OFFLINE=skip where that is out of reach)
	@status=0; $(TOOLS)/govulncheck ./... > bin/vulncheck.txt 2>&1 || status=$$?; \
	  if [ $$status != 0 ] && [ "$(OFFLINE)" = skip ] && grep -q 'fetching vulnerabilities' bin/vulncheck.txt; then \
	    echo "NOT CHECKED for vulnerabilities: the database is out of reach"; exit 0; fi; \
	  cat bin/vulncheck.txt; exit $$status

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
