{{- define "quartermaster.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "quartermaster.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "quartermaster.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "quartermaster.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "quartermaster.selector" -}}
app.kubernetes.io/name: {{ include "quartermaster.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "quartermaster.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "quartermaster.selector" . }}
{{- end }}

{{- define "quartermaster.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "quartermaster.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "quartermaster.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "quartermaster.secret" -}}
{{- if .Values.secrets.existingSecret }}
{{- .Values.secrets.existingSecret }}
{{- else if .Values.bundled.enabled }}
{{- printf "%s-bundled" (include "quartermaster.fullname" .) }}
{{- else }}
{{- fail "secrets.existingSecret is empty: name a Secret with the keys secret-key, database-url, redis-url and metrics-token (docs/guide/kubernetes.md), or set bundled.enabled to try it out." }}
{{- end }}
{{- end }}

{{- define "quartermaster.hosts" -}}
{{- $service := include "quartermaster.fullname" . }}
{{- $hosts := list "localhost" "127.0.0.1" $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) (printf "%s.%s.svc.cluster.local" $service .Release.Namespace) }}
{{- $hosts = concat $hosts .Values.allowedHosts }}
{{- if .Values.ingress.enabled }}{{ $hosts = concat $hosts .Values.ingress.hosts }}{{ end }}
{{- if .Values.httpRoute.enabled }}{{ $hosts = concat $hosts .Values.httpRoute.hostnames }}{{ end }}
{{- /* A wildcard as a route has it, *.example.org, is .example.org to a web process. */}}
{{- join "," (uniq $hosts) | replace "*." "." }}
{{- end }}

{{/* One secret's key as an environment variable: (list root name key). */}}
{{- define "quartermaster.fromSecret" -}}
{{- $root := index . 0 }}
- name: {{ index . 1 }}
  valueFrom:
    secretKeyRef:
      name: {{ include "quartermaster.secret" $root }}
      key: {{ index . 2 }}
{{- end }}

{{- define "quartermaster.env" -}}
{{- include "quartermaster.fromSecret" (list . "QUARTERMASTER_SECRET_KEY" .Values.secrets.keys.secretKey) }}
{{- include "quartermaster.fromSecret" (list . "QUARTERMASTER_DATABASE_URL" .Values.secrets.keys.databaseUrl) }}
{{- include "quartermaster.fromSecret" (list . "QUARTERMASTER_REDIS_URL" .Values.secrets.keys.redisUrl) }}
{{- include "quartermaster.fromSecret" (list . "QUARTERMASTER_METRICS_TOKEN" .Values.secrets.keys.metricsToken) }}
{{- if .Values.secrets.keys.secretKeyFallbacks }}
{{- include "quartermaster.fromSecret" (list . "QUARTERMASTER_SECRET_KEY_FALLBACKS" .Values.secrets.keys.secretKeyFallbacks) }}
{{- end }}
{{- if .Values.secrets.keys.webhookSecret }}
{{- include "quartermaster.fromSecret" (list . "QUARTERMASTER_WEBHOOK_SECRET" .Values.secrets.keys.webhookSecret) }}
{{- end }}
- name: QUARTERMASTER_ALLOWED_HOSTS
  value: {{ include "quartermaster.hosts" . | quote }}
{{- with .Values.trustedProxies }}
- name: QUARTERMASTER_TRUSTED_PROXIES
  value: {{ include "quartermaster.proxies" . | quote }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: QUARTERMASTER_{{ $name }}
  {{- /* Helm reads every number as a float, and writes a large one as 1e+08. */}}
  {{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
  value: {{ int64 $value | toString | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Addresses and networks of proxies. What a process would refuse when it starts is refused here, before anything is made. IPv6 is looked at roughly. */}}
{{- define "quartermaster.proxies" -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" }}
{{- $v4 := printf `^(%s\.){3}%s(/([12]?[0-9]|3[0-2]))?$` $octet $octet }}
{{- $v6 := "^[0-9a-fA-F:]*:[0-9a-fA-F:.]*(/([1-9]?[0-9]|1[01][0-9]|12[0-8]))?$" }}
{{- range . }}
{{- if not (or (regexMatch $v4 .) (regexMatch $v6 .)) }}{{ fail (printf "trustedProxies: %q is no IP address and no network such as 10.42.0.0/16." .) }}{{ end }}
{{- if regexMatch $v4 . }}
{{- $parts := splitList "/" . }}
{{- $address := 0 }}
{{- range splitList "." (first $parts) }}{{ $address = add (mul $address 256) (int .) }}{{ end }}
{{- $others := 1 }}
{{- range until (sub 32 (len $parts | eq 2 | ternary (last $parts) "32" | int) | int) }}{{ $others = mul $others 2 }}{{ end }}
{{- if mod $address $others }}{{ fail (printf "trustedProxies: %q is an address inside a network: end it with zeros, or make the part behind the slash larger." .) }}{{ end }}
{{- end }}
{{- end }}
{{- join "," . }}
{{- end }}

{{/* How long a web pod may take to stop. Killed before its drain is over, it would cut off what still runs: after DRAIN_S a
web process has up to 5 s for last words (controlplane/web/serve.py). */}}
{{- define "quartermaster.grace" -}}
{{- range .Values.extraEnv }}
{{- if eq .name "QUARTERMASTER_DRAIN_S" }}{{ fail "extraEnv: set settings.DRAIN_S instead of QUARTERMASTER_DRAIN_S: the grace period of web pods depends on it." }}{{ end }}
{{- end }}
{{- $drain := (has (toString .Values.settings.DRAIN_S) (list "" "<nil>") | ternary 30 .Values.settings.DRAIN_S) | float64 | ceil | int }}{{/* 30: the product's own */}}
{{- $grace := .Values.web.terminationGracePeriodSeconds | default (add $drain 10) | int }}
{{- if lt $grace (add $drain 5 | int) }}
{{- fail (printf "web.terminationGracePeriodSeconds is %d: pods would be killed while requests run. Make it at least %d (settings.DRAIN_S and 5 s for the end), or leave it empty." $grace (add $drain 5)) }}
{{- end }}
{{- $grace }}
{{- end }}

{{- define "quartermaster.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: state, mountPath: /var/lib/quartermaster}
{{- if .Values.files.persistence.enabled }}
- {name: files, mountPath: /var/lib/quartermaster/files}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "quartermaster.volumes" -}}
- name: tmp
  emptyDir: {}
- name: state
  emptyDir: {}
{{- if .Values.files.persistence.enabled }}
- name: files
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-files" (include "quartermaster.fullname" .)) .Values.files.persistence.existingClaim }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "quartermaster.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What every pod of ours has: account, security, placement. (dict "root" $ "component" name) */}}
{{- define "quartermaster.pod" -}}
{{- if ne .component "migrate" }}{{/* before an install it is not there yet */}}
serviceAccountName: {{ eq .component "operator" | ternary (printf "%s-operator" (include "quartermaster.fullname" .root)) (include "quartermaster.serviceAccount" .root) }}
{{- end }}
automountServiceAccountToken: {{ has .component (list "worker" "standby" "operator") }}
{{- /* A Service of another product named "quartermaster" would otherwise set QUARTERMASTER_PORT to tcp://... */}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.runAsUser | int }}
  runAsUser: {{ . }}
  fsGroup: {{ . }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- include "quartermaster.placement" .root }}
{{- end }}

{{/* Where a pod's images come from, and on which nodes it runs. */}}
{{- define "quartermaster.placement" }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- with .Values.affinity }}
affinity:
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "quartermaster.podMeta" -}}
labels:
  {{- include "quartermaster.selector" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- with .root.Values.podLabels }}
{{ toYaml . | indent 2 }}
{{- end }}
annotations:
  {{- if .root.Values.secrets.rollOnChange }}
  quartermaster.dev/secrets: {{ .root.Values.secrets.rollOnChange | quote }}
  {{- end }}
  kubectl.kubernetes.io/default-container: {{ .component }}
{{- with .root.Values.podAnnotations }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/* Spread over nodes and zones, as far as possible. (dict "root" $ "components" (list name ...)) */}}
{{- define "quartermaster.spread" }}
topologySpreadConstraints:
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "quartermaster.selector" $.root | nindent 6 }}
    matchExpressions:
    - {key: app.kubernetes.io/component, operator: In, values: {{ toJson $.components }}}
{{- end }}
{{- end }}

{{/* What the operator may do to objects in namespaces. */}}
{{- define "quartermaster.operatorRules" }}
- {apiGroups: [quartermaster.dev], resources: [slos, tiers, tokenpools, adapters, tenants, projects, tokenentitlements, apikeys], verbs: [get, list, watch, patch]}
- apiGroups: [quartermaster.dev]
  resources: [slos/status, tiers/status, tokenpools/status, adapters/status, tenants/status, projects/status, tokenentitlements/status, apikeys/status]
  verbs: [patch]
# spec.replicas of a TokenPool: what it names is read, its pods or endpoints are watched.
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [apps], resources: [deployments, statefulsets], verbs: [get]}
- {apiGroups: [inference.networking.k8s.io, inference.networking.x-k8s.io], resources: [inferencepools], verbs: [get]}
{{- if .Values.operator.leases }}
- {apiGroups: [""], resources: [pods], verbs: [create, delete]}
{{- end }}
{{- end }}
