##@ The playground and the site

.PHONY: playground
playground: ## Build the playground in bin/playground/index.html, one page that runs in a browser
	@go run ./hack/playground

.PHONY: test-site
test-site: docs build ## Test the playground and the site in headless Chromium (a Debian package: chromium)
	@command -v chromium > /dev/null || { echo "make $@ needs chromium: apt-get install chromium" >&2; exit 1; }
	@cd hack/browser && go test -count=1 -v -timeout 10m $(TESTFLAGS) .
