#!/usr/bin/env bash
# Builds the site in bin/site, with a directory for main and one for the newest patch of each of the three newest minor releases. Its first
# page leads to the newest release, or to main while there is none. `make docs-versions` calls it.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$PWD/bin/site
sources=$(mktemp -d)
trap 'rm -rf "$sources"; git worktree prune' EXIT
rm -rf "$out"
mapfile -t releases < <(git tag --list --sort=-version:refname 'v*' | grep -E '^v[0-9]+\.[0-9]+\.[0-9]+$' | awk -F. '!seen[$1 "." $2]++' | head -3)
versions=$(IFS=,; echo "main${releases[*]:+,${releases[*]}}")

echo "Building the site of main"
make --no-print-directory docs SITE="$out/main" SITEFLAGS="-version main -versions $versions"
for release in "${releases[@]}"; do
  echo "Building the site of $release"
  git worktree add --detach --quiet "$sources/$release" "$release"
  make --no-print-directory -C "$sources/$release" docs SITE="$out/$release" SITEFLAGS="-version $release -versions $versions"
done

first=${releases[0]:-main}/index.html
printf '<!doctype html>\n<title>Stowage</title>\n<meta http-equiv="refresh" content="0; url=%s">\n<a href="%s">Stowage</a>\n' "$first" "$first" > "$out/index.html"
