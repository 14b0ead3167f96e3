#!/usr/bin/env bash
# The demo: a real control plane on this machine, Stowage in it, and what it does to the
# samples: a Deployment that grows and shrinks over two pools, and an outage of one, a DaemonSet on nodes of three
# sizes, and a peer pod. KEEP=1 leaves the cluster up; one that is up already is used and
# left up.
set -euo pipefail
cd "$(dirname "$0")/.."

local=bin/stowage-local
kubectl=bin/kubectl
bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'
if [ ! -t 1 ] || [ -n "${NO_COLOR:-}" ]; then bold='' dim='' plain=''; fi

title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '%s%s%s\n' "$dim" "$*" "$plain"; }

# show prints the parts of the pod that the demo is about.
show() {
  "$kubectl" "$@" -o go-template='{{range $k, $v := .metadata.annotations}}{{if ne $k "kubectl.kubernetes.io/last-applied-configuration"}}{{printf "  annotation  %s: %s\n" $k $v}}{{end}}{{end}}{{with .spec.overhead}}{{printf "  overhead    cpu %v, memory %v\n" .cpu .memory}}{{end}}{{range .spec.containers}}{{printf "  container   %s\n" .name}}{{range $k, $v := .resources.requests}}{{printf "    requests  %s: %s\n" $k $v}}{{end}}{{range $k, $v := .resources.limits}}{{printf "    limits    %s: %s\n" $k $v}}{{end}}{{end}}'
}

if "$local" status >/dev/null 2>&1; then KEEP=1; fi
finish() {
  status=$?
  if [ "${KEEP:-}" = 1 ] && [ "$status" = 0 ]; then
    printf '\nThe cluster is still up: export KUBECONFIG=%s/bin/cluster/kubeconfig; make down ends it.\n' "$PWD"
  elif [ "${KEEP:-}" != 1 ]; then
    "$local" down
  fi
}
trap finish EXIT

title "A local cluster"
"$local" up ${STOWAGE_REPLICAS:+--replicas "$STOWAGE_REPLICAS"} || { trap - EXIT; exit 1; } # its message names the logs, which stay
export KUBECONFIG=$PWD/bin/cluster/kubeconfig
"$kubectl" get nodes -L nodesize,type
"$kubectl" delete -k config/samples/ --ignore-not-found >/dev/null 2>&1 # of an earlier demo

# spread prints how a Deployment's pods are divided over the values of a node label.
spread() { # namespace, deployment, replicas, label
  "$kubectl" -n "$1" wait "deployment/$2" --for=jsonpath='{.status.readyReplicas}'="$3" --timeout=60s >/dev/null
  "$kubectl" -n "$1" wait "deployment/$2" --for=jsonpath='{.status.replicas}'="$3" --timeout=60s >/dev/null
  "$kubectl" -n "$1" get pods -l "app=${2%-deployment}" -o go-template='{{range .items}}{{if not .metadata.deletionTimestamp}}{{.spec.nodeName}}{{"\n"}}{{end}}{{end}}' |
    awk -v key="$4" -v total="$3" '
      NR == FNR { pool[$1] = $2; next }
      { count[pool[$1]]++ }
      END {
        for (p in count) {
          bar = ""; for (i = 0; i < count[p]; i++) bar = bar "█"
          printf "  %s=%-15s %4d  %3d%%  %s\n", key, p, count[p], 100 * count[p] / total, bar
        }
      }' <("$kubectl" get nodes -o go-template="{{range .items}}{{.metadata.name}} {{index .metadata.labels \"$4\"}}{{\"\\n\"}}{{end}}") - | sort
}

# grow shows a Deployment's spread before and after it is scaled up and down.
grow() { # namespace, deployment, label
  for replicas in 10 25 4; do
    "$kubectl" -n "$1" scale "deployment/$2" --replicas="$replicas" >/dev/null
    say "$2 at $replicas replicas"
    spread "$1" "$2" "$replicas" "$3"
  done
}

# zones prints the pods of the Deployment zones in each zone, in one line, at some replicas one after the other.
zones() {
  for replicas in "$@"; do
    "$kubectl" scale deployment/zones --replicas="$replicas" >/dev/null
    counts=$(spread default zones "$replicas" topology.kubernetes.io/zone | awk '{ sub(/.*=/, "", $1); printf "  %s %3d", $1, $2 }')
    printf '  %3d pods:%s\n' "$replicas" "$counts"
    if [ -n "${written:-}" ]; then # the next step comes after the costs
      "$kubectl" wait clusterscaledownpolicy/all --for=jsonpath='{.status.written}'="$replicas" --timeout=60s >/dev/null
    fi
  done
}

title "A scale-down forgets topologySpreadConstraints: zones of 2, 3 and 4 nodes, maxSkew 1"
n=0
for node in $("$kubectl" get nodes -o name | head -n 9); do
  n=$((n + 1))
  zone=zone-c
  if [ $n -le 2 ]; then zone=zone-a; elif [ $n -le 5 ]; then zone=zone-b; fi
  "$kubectl" label --overwrite "$node" topology.kubernetes.io/zone=$zone >/dev/null
done
sed '1,/^---$/d' config/samples/scale-down.yaml | "$kubectl" apply -f - >/dev/null
zones 90 60 18 6
title "With one ClusterScaleDownPolicy for the whole cluster (config/samples/scale-down.yaml), it keeps them"
"$kubectl" apply -f config/samples/scale-down.yaml >/dev/null
written=yes
zones 90 60 18 6

title "One pod on demand first, and of the others 20% there and 80% on spot nodes, by a policy (config/samples/spread-policy.yaml)"
sed -n '/^---/q; /^spec:/,$p' config/samples/spread-policy.yaml
"$kubectl" apply -f config/samples/spread-policy.yaml >/dev/null
grow default fleet type
"$kubectl" wait spreadpolicy/tier-2 --for=jsonpath='{.status.workloads}'=1 --timeout=60s >/dev/null
bin/stowage status --wait --timeout 1m

title "The pool spot gets no more pods: its nodes are cordoned. After 10 s, the other pool takes the pods that wait"
"$kubectl" patch spreadpolicy tier-2 --type json -p '[{"op": "replace", "path": "/spec/pools/1/spill/after", "value": "10s"}]' >/dev/null
"$kubectl" cordon -l type=spot >/dev/null
"$kubectl" scale deployment/fleet --replicas=15 >/dev/null
spread default fleet 15 type
"$kubectl" get poolstates
say "The nodes are back. Stowage tries the pool again by itself; whoever cannot wait deletes the PoolState"
"$kubectl" uncordon -l type=spot >/dev/null
"$kubectl" delete poolstates --all >/dev/null
"$kubectl" rollout restart deployment/fleet >/dev/null
"$kubectl" rollout status deployment/fleet --timeout=60s >/dev/null
spread default fleet 15 type

title "Coming from another webhook: a strategy in an annotation works unchanged (config/samples/spread-annotation.yaml)"
grep CustomPodScheduleStrategy config/samples/spread-annotation.yaml
"$kubectl" apply -f config/samples/spread-annotation.yaml >/dev/null
spread spread-demo alpine 10 nodesize

# sizes prints what the DaemonSet's pods have on the demo's nodes.
sizes() {
  printf '  %-10s %-20s %s\n' NODE 'ALLOCATABLE CPU' "THE POD'S CPU, MEMORY"
  for size in 4 16 64; do
    "$kubectl" get pods -l app=example-daemonset --field-selector "spec.nodeName=worker-$size" \
      -o go-template="{{range .items}}{{range .spec.containers}}{{.resources.requests.cpu}}, {{.resources.requests.memory}}{{end}}{{end}}" |
      xargs -0 printf '  %-10s %-20s %s\n' "worker-$size" "$("$kubectl" get node "worker-$size" -o jsonpath='{.status.allocatable.cpu}')"
  done
}

title "A DaemonSet on nodes of 4, 16 and 64 cores: a tenth of each (config/samples/sizing.yaml)"
"$kubectl" apply -f hack/nodes/sizes.yaml >/dev/null
"$kubectl" wait node/worker-4 node/worker-16 node/worker-64 --for=condition=Ready --timeout=60s >/dev/null
"$kubectl" apply -f config/samples/sizing.yaml >/dev/null
"$kubectl" rollout status daemonset/example-daemonset --timeout=60s >/dev/null
sizes
say "A fifth, in place: the pods that run are resized, within some seconds"
"$kubectl" patch fdt default-resource-percentages --type merge -p '{"spec":{"cpuPercentage":20,"updatePolicy":"InPlace"}}' >/dev/null
"$kubectl" wait fdt/default-resource-percentages --for=jsonpath='{.status.observedGeneration}'=2 --timeout=60s >/dev/null
"$kubectl" wait fdt/default-resource-percentages --for=condition=UpToDate --timeout=60s >/dev/null
sizes
"$kubectl" get fdt
"$kubectl" delete daemonset example-daemonset >/dev/null

title "The pod template of a peer pod, as it is written (config/samples/peerpod.yaml)"
sed -n '/runtimeClassName/,$p' config/samples/peerpod.yaml

title "What Stowage would do, offline: bin/stowage preview config/samples/ hack/nodes/"
bin/stowage preview config/samples/ hack/nodes/

title "The same pod, as the API server has it"
"$kubectl" apply -f config/samples/peerpod.yaml
"$kubectl" rollout status deployment/peer-pod --timeout=30s >/dev/null
pod=$("$kubectl" get pods -l app=peer-pod -o jsonpath='{.items[0].metadata.name}')
show get pod "$pod"

title "Where the scheduler put it"
"$kubectl" get pod "$pod" -o wide
node=$("$kubectl" get pod "$pod" -o jsonpath='{.spec.nodeName}')
say "On $node the pod takes its overhead and one VM, and none of the VM's 1 cpu and 2 GiB:"
"$kubectl" describe node "$node" | sed -n '/^Allocated resources/,/^Events/p' | grep -vE '^(Events|Allocated| *\(Total)'
