module github.com/stowage-dev/stowage/hack/prose

go 1.26

toolchain go1.26.8

require github.com/yuin/goldmark v1.8.7
