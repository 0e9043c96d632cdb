{{/* Labels of everything that the chart makes. */}}
{{- define "bayplan.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "bayplan.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Objects of a file of configs, in the namespace of the release: what has no values is written once.
Arguments: the root, the file, and the kinds to take (all, if there are none).
*/}}
{{- define "bayplan.deployed" -}}
{{- $root := index . 0 -}}
{{- $kinds := index . 2 -}}
{{- $text := $root.Files.Get (index . 1) | replace "bayplan-system" $root.Release.Namespace -}}
{{- range regexSplit "(?m)^---$" $text -1 -}}
{{- $object := fromYaml . -}}
{{- if or (not $kinds) (has $object.kind $kinds) -}}
{{- include "bayplan.object" (list $root $object) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An object with the chart's labels. Arguments: the root, the object. */}}
{{- define "bayplan.object" -}}
{{- $object := index . 1 -}}
{{- $labels := include "bayplan.labels" (index . 0) | fromYaml -}}
{{- $_ := set $object.metadata "labels" (merge (default dict $object.metadata.labels) $labels) }}
---
{{ toYaml $object }}
{{- end -}}

{{/*
An object that is made where there is none, and outlasts the release. What somebody else has made is
left alone. Arguments: the root, the object.
*/}}
{{- define "bayplan.kept" -}}
{{- $root := index . 0 -}}
{{- $object := index . 1 -}}
{{- $there := lookup $object.apiVersion $object.kind "" $object.metadata.name -}}
{{- if or (not $there) (eq (include "bayplan.isOwn" (list $root $there)) "true") -}}
{{- $policy := dict "helm.sh/resource-policy" "keep" -}}
{{- $_ := set $object.metadata "annotations" (merge (default dict $object.metadata.annotations) $policy) -}}
{{- include "bayplan.object" (list $root $object) -}}
{{- end -}}
{{- end -}}

{{/*
Whether an object of the cluster is of this release, and nobody else has written it since.
Arguments: the root, the object.
*/}}
{{- define "bayplan.isOwn" -}}
{{- $release := (index . 0).Release -}}
{{- $metadata := (index . 1).metadata -}}
{{- $given := default dict $metadata.annotations -}}
{{- $own := and (eq (default "" (index $given "meta.helm.sh/release-name")) $release.Name) (eq (default "" (index $given "meta.helm.sh/release-namespace")) $release.Namespace) -}}
{{- range $metadata.managedFields -}}
{{- if and (not .subresource) (not (has .manager (list "helm" "kube-apiserver"))) -}}
{{- $own = false -}}
{{- end -}}
{{- end -}}
{{- $own -}}
{{- end -}}

{{/* A certificate of its own for a pod's life. Arguments: the root, the name of the Service. */}}
{{- define "bayplan.certificate" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
- name: certificate
  image: {{ include "bayplan.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  command:
  - openssl
  - req
  - -x509
  - -newkey
  - ec
  - -pkeyopt
  - ec_paramgen_curve:P-256
  - -noenc
  - -days
  - "3650"
  - -subj
  - /CN={{ $name }}
  - -addext
  - subjectAltName=DNS:{{ $name }}.{{ $root.Release.Namespace }}.svc
  - -keyout
  - /tls/tls.key
  - -out
  - /tls/tls.crt
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  securityContext:
    {{- include "bayplan.confined" $root | nindent 4 }}
  volumeMounts:
  - {name: tls, mountPath: /tls}
{{- end -}}

{{- define "bayplan.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "bayplan.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "bayplan.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: https, scheme: HTTPS}
  # One search for a large gang may keep it from answering for seconds.
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: https, scheme: HTTPS}
  timeoutSeconds: 5
{{- end -}}

{{/* The configuration of a daemon. Arguments: the root, the Lease, the profiles, more fields. */}}
{{- define "bayplan.config" -}}
{{- $lease := dict "leaderElect" true "resourceNamespace" (index . 0).Release.Namespace "resourceName" (index . 1) -}}
{{- $fixed := dict "apiVersion" "kubescheduler.config.k8s.io/v1" "kind" "KubeSchedulerConfiguration" "profiles" (index . 2) "leaderElection" $lease -}}
{{- toYaml (mergeOverwrite (deepCopy (index . 3)) $fixed) -}}
{{- end -}}

{{/* Whether the journal of the scheduler is a file on a volume, which has one writer. */}}
{{- define "bayplan.journalOnVolume" -}}
{{- with .Values.scheduler.usageJournal -}}
{{- and .enabled (not .postgresSecretName) -}}
{{- end -}}
{{- end -}}

{{/* Refuse values that do not go together. */}}
{{- define "bayplan.check" -}}
{{- $scheduler := .Values.scheduler -}}
{{- if not (or $scheduler.enabled .Values.driver.enabled .Values.pools.enabled) -}}
{{- fail "nothing to install: enable scheduler, driver or pools" -}}
{{- end -}}
{{- if and $scheduler.enabled (eq (include "bayplan.journalOnVolume" .) "true") (gt (int (default 1 $scheduler.replicas)) 1) -}}
{{- fail (printf "scheduler.replicas is %d, and scheduler.usageJournal is a file, which has one writer: take one replica, or PostgreSQL (scheduler.usageJournal.postgresSecretName)" (int $scheduler.replicas)) -}}
{{- end -}}
{{- $names := list -}}
{{- range $scheduler.profiles -}}
{{- $name := default "default-scheduler" .schedulerName -}}
{{- if has $name $names -}}
{{- fail (printf "scheduler.profiles has two profiles for schedulerName %s: give each pod one" $name) -}}
{{- end -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- if hasKey $scheduler.config "profiles" -}}
{{- fail "scheduler.config has profiles: they belong in scheduler.profiles" -}}
{{- end -}}
{{- if hasKey $scheduler.config "leaderElection" -}}
{{- if or (hasKey $scheduler.config.leaderElection "resourceName") (hasKey $scheduler.config.leaderElection "resourceNamespace") -}}
{{- fail "scheduler.config.leaderElection names a Lease: the role allows the one that the chart names" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.admission.enabled (semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "admission.enabled needs Kubernetes 1.36 or newer, for MutatingAdmissionPolicy; this cluster has %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.driver.enabled (semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "driver.enabled needs Kubernetes 1.34 or newer, for resource.k8s.io/v1; this cluster has %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
