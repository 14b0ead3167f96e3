#!/bin/sh
# Run the commands of steps 3 and 4 of docs/quickstart.md in the cluster of the current kubeconfig, and remove what they made.
# `make quickstart` calls it.
set -eu
cd "$(dirname "$0")/.."
PATH=$PWD/bin:$PATH
commands=$(sed -n '/^## 3\./,/^## 5\./s/^    \(kubectl\|stowage\) /\1 /p' docs/quickstart.md)
[ "$(echo "$commands" | wc -l)" -ge 7 ] || { echo "docs/quickstart.md has lost commands of its steps 3 and 4" >&2; exit 1; }
trap 'kubectl delete --ignore-not-found -f docs/examples/web-deployment.yaml -f docs/examples/spread.yaml' EXIT
echo "$commands" | while read -r command; do
  echo "\$ $command"
  sh -euc "$command" < /dev/null
done
