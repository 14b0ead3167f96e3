#!/usr/bin/env bash
# Runs one of the long suites, another one for each commit, so that none goes a week without a run. `make test-turn` calls it.
#
# A suite that this machine cannot run says NOT RUN, and the next one takes its turn. A suite that fails runs once more. If it passes then, it is
# named as flaky.
set -uo pipefail
cd "$(dirname "$0")/.."

versions=(hack/controlplane/versions/v*)
count=$(git rev-list --count HEAD)
if [ "$(git rev-parse --is-shallow-repository)" = true ]; then # the commits are not all there
	count=$(($(git log -1 --format=%ct) / 60))
fi
suites=(
	test-bursts test-shortages test-fleet test-karpenter test-domains test-outage test-impact compare test-node
	"test-versions VERSIONS=PICKED" "soak MINUTES=12 AGAIN=1" "churn MINUTES=10" "test-liveness SEEDS=10"
)
number=${#suites[@]}
picked=$(basename "${versions[count / number % ${#versions[@]}]}")
log=bin/turn.txt
export OPTIONAL=1 # real nodes say NOT RUN where the machine runs none
mkdir -p bin

run() {
	local begin=$SECONDS
	echo "== make $1"
	# shellcheck disable=SC2086 # a suite has its settings behind its name
	timeout 45m make --no-print-directory $1 >"$log" 2>&1
	local status=$?
	echo "== make $1: $((SECONDS - begin)) s"
	return $status
}

for try in $(seq 0 $((number - 1))); do
	suite=${suites[(count + try) % number]/PICKED/$picked}
	if run "$suite"; then
		if grep -q '^NOT RUN' "$log" && ! grep -q '^ *--- PASS' "$log"; then
			grep '^NOT RUN' "$log" | head -n 1
			continue
		fi
		exit 0
	fi
	tail -n 100 "$log"
	if run "$suite"; then
		echo "FLAKY: make $suite failed, and passed the second time"
		exit 0
	fi
	tail -n 100 "$log"
	echo "make $suite failed twice" >&2
	exit 1
done
echo "NOT RUN: this machine can run none of the long suites"
