# syntax=docker/dockerfile:1
# The image by Docker. `make image` builds one of the same contents without it.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 .
FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY api/ api/
COPY cmd/ cmd/
COPY config/crd/ config/crd/
COPY internal/ internal/
ARG TARGETOS TARGETARCH VERSION=devel
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -gcflags=all=-dwarf=false \
    -ldflags "-s -w -buildid= -X github.com/stowage-dev/stowage/internal/platform/version.Version=$VERSION" -o /stowage ./cmd/stowage

# Nothing but the binary: it trusts what its service account names, and needs no shell.
FROM scratch
ARG VERSION=devel REVISION=
LABEL org.opencontainers.image.title="stowage" \
      org.opencontainers.image.description="Where a pod goes, how big it is, and what it really consumes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="https://github.com/stowage-dev/stowage" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build --chmod=0755 /stowage /stowage
USER 65532:65532
ENTRYPOINT ["/stowage"]
CMD ["serve"]
