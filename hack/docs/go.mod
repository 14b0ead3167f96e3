module github.com/stowage-dev/stowage/hack/docs

go 1.26.0

toolchain go1.26.8

require (
	github.com/yuin/goldmark v1.8.7
	golang.org/x/net v0.61.0
)
