{{/*
The objects' names are fixed: the program knows them, and a second installation in one
cluster, which Helm refuses because of them, would decide about each pod twice.
*/}}

{{- define "stowage.labels" -}}
app.kubernetes.io/name: stowage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Labels and annotations of an object: a dict of root and, where it has some of its own, labels and annotations. */}}
{{- define "stowage.metadata" -}}
labels:
  {{- merge (include "stowage.labels" .root | fromYaml) (.labels | default dict) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* A duration, such as 1m30s, in seconds. */}}
{{- define "stowage.seconds" -}}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ns|us|ms|s|m|h)" . -1 }}
{{- $unit := get (dict "ns" 1e-9 "us" 1e-6 "ms" 1e-3 "s" 1.0 "m" 60.0 "h" 3600.0) (regexFind "[a-z]+$" .) }}
{{- $sum = addf $sum (mulf (regexFind "^[0-9.]+" . | float64) $unit) }}
{{- end }}
{{- $sum }}
{{- end }}

{{- /* The labels by which the pods of a Deployment are found. */}}
{{- define "stowage.selector" -}}
app.kubernetes.io/name: {{ . }}
{{- end }}

{{- /* What each Deployment runs: webhook and controllers, or "" for both in one. */}}
{{- define "stowage.parts" -}}
{{- if .Values.webhook.enabled }}
{{- ternary (list "webhook" "controllers") (list "") .Values.controllers.separate | toJson }}
{{- else if not .Values.controllers.separate }}
{{- fail "webhook.enabled=false runs the Deployment of the controllers alone: leave controllers.separate on" }}
{{- else if not .Values.features.scaleDown }}
{{- fail "webhook.enabled=false leaves features.scaleDown alone, which is off: set one of them" }}
{{- else if .Values.metrics.auth }}
{{- fail "metrics.auth serves the metrics with the certificate of the webhook, which webhook.enabled=false leaves out: set one of them" }}
{{- else }}
{{- toJson (list "controllers") }}
{{- end }}
{{- end }}

{{- /* The features that are on. Without the webhook, only one can be. */}}
{{- define "stowage.features" -}}
{{- if .Values.webhook.enabled }}
{{- toJson .Values.features }}
{{- else }}
{{- dict "scaleDown" .Values.features.scaleDown | toJson }}
{{- end }}
{{- end }}

{{- /* The ServiceAccounts of the replicas, as a list in JSON. */}}
{{- define "stowage.accounts" -}}
{{- $controllers := ternary .Values.controllers.serviceAccountName .Values.serviceAccount.name .Values.controllers.separate }}
{{- ternary (uniq (list .Values.serviceAccount.name $controllers)) (list $controllers) .Values.webhook.enabled | toJson }}
{{- end }}

{{- /* The ServiceAccounts that a role is for, which its name says: a dict of root and role. */}}
{{- define "stowage.subjects" -}}
{{- $webhook := .root.Values.serviceAccount.name }}
{{- $controllers := ternary .root.Values.controllers.serviceAccountName $webhook .root.Values.controllers.separate }}
{{- $names := list $webhook $controllers }}
{{- if hasSuffix "-webhook" .role }}{{ $names = list $webhook }}{{ else if or (hasSuffix "-controllers" .role) (not .root.Values.webhook.enabled) }}{{ $names = list $controllers }}{{ end }}
{{- range uniq $names }}
- kind: ServiceAccount
  name: {{ . }}
  namespace: {{ $.root.Release.Namespace }}
{{- end }}
{{- end }}

{{- /* The users that the replicas are, as a list in JSON. */}}
{{- define "stowage.users" -}}
{{- $users := list }}
{{- range include "stowage.accounts" . | fromJsonArray }}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $.Release.Namespace .) }}
{{- end }}
{{- toJson $users }}
{{- end }}

{{- /* Refuses a value that needs MutatingAdmissionPolicies where there are none: a dict of root, value, and instead, which says what to do there. */}}
{{- define "stowage.needMutatingPolicies" -}}
{{- /* Without a cluster, Helm knows only a version: its own, or that of --kube-version, which Argo CD and Flux give. */}}
{{- $served := .root.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" }}
{{- $old := semverCompare "<1.36.0-0" .root.Capabilities.KubeVersion.Version }}
{{- if and (not $served) (or $old (lookup "v1" "Namespace" "" "kube-system")) }}
{{- fail (printf "%s needs an API server that serves MutatingAdmissionPolicy v1 (Kubernetes 1.36 or later; helm template takes --kube-version); until then %s" .value .instead) }}
{{- end }}
{{- end }}

{{- define "stowage.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Where the serving certificate comes from: self, cert-manager or secret. */}}
{{- define "stowage.certs" -}}
{{- if and .Values.certs.certManager.enabled .Values.certs.existingSecret }}
{{- fail "certs.certManager.enabled and certs.existingSecret exclude each other: unset one of them" }}
{{- end }}
{{- if and .Values.certs.caBundle (not .Values.certs.existingSecret) }}
{{- fail "certs.caBundle belongs to certs.existingSecret: name that, or unset certs.caBundle" }}
{{- end }}
{{- if and .Values.certs.certManager.issuerRef (not .Values.certs.certManager.enabled) }}
{{- fail "certs.certManager.issuerRef has no effect without certs.certManager.enabled: set it, or unset the issuer" }}
{{- end }}
{{- if .Values.certs.certManager.enabled }}cert-manager{{ else if .Values.certs.existingSecret }}secret{{ else }}self{{ end }}
{{- end }}

{{- define "stowage.certSecret" -}}
{{- .Values.certs.existingSecret | default "stowage-webhook-cert-manager" }}
{{- end }}

{{- /* The documents of a manifest in files/, as {items: [...]}. */}}
{{- define "stowage.documents" -}}
items:
{{- range regexSplit "(?m)^---$" . -1 }}
{{- $doc := fromYaml . }}
{{- if $doc }}
- {{ toYaml $doc | nindent 2 | trim }}
{{- end }}
{{- end }}
{{- end }}

{{- /* One webhook's client: a dict of root and path. */}}
{{- define "stowage.clientConfig" -}}
{{- if and (eq (include "stowage.certs" .root) "secret") .root.Values.certs.caBundle }}
caBundle: {{ .root.Values.certs.caBundle | b64enc }}
{{- end }}
service:
  name: stowage-webhook
  namespace: {{ .root.Release.Namespace }}
  path: {{ .path }}
  port: 443
{{- end }}

{{- define "stowage.excludedNamespaces" -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: [kube-system, kube-public, kube-node-lease, {{ .Release.Namespace }}]
{{- end }}

{{- define "stowage.registrationAnnotations" -}}
{{- if eq (include "stowage.certs" .) "cert-manager" }}
cert-manager.io/inject-ca-from: {{ .Release.Namespace }}/stowage-webhook
{{- end }}
{{- end }}

{{- /* A setting as a flag takes it. */}}
{{- define "stowage.settingValue" -}}
{{- if kindIs "slice" . }}{{ join "," . }}{{ else if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{- /* Whether there is a NetworkPolicy: "true" or "". */}}
{{- define "stowage.networkPolicy" -}}
{{- $p := .Values.webhook.networkPolicy }}
{{- if kindIs "invalid" $p.enabled }}{{ if $p.from }}true{{ end }}{{ else if $p.enabled }}true{{ end }}
{{- end }}
