module github.com/stowage-dev/stowage/hack/browser

go 1.26

toolchain go1.26.8

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.23.0
)

require github.com/go-json-experiment/json v1.27.2 // indirect
