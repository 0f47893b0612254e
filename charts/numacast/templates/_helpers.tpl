{{/* The chart's name, as the label app.kubernetes.io/name has it. */}}
{{- define "numacast.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* What the names of all objects begin with: 52 characters, so that the longest suffix and a pod's hash fit. */}}
{{- define "numacast.fullname" -}}
{{- $name := include "numacast.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- .Values.fullnameOverride | default $full | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* The selector of a component's pods, which can never change. Takes (dict "root" $ "component" "agent"). */}}
{{- define "numacast.selectorLabels" -}}
app.kubernetes.io/name: {{ include "numacast.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The labels of a component's objects. Takes (dict "root" $ "component" "agent"). */}}
{{- define "numacast.labels" -}}
{{- $own := include "numacast.selectorLabels" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" (.root.Chart.AppVersion | toString) }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") }}
{{- mergeOverwrite (dict) .root.Values.commonLabels $own | toYaml }}
{{- end }}

{{/* The labels of a component's pods: nothing that changes with the chart's version alone.
     Takes (dict "root" $ "component" "agent" "podLabels" ...). */}}
{{- define "numacast.podLabels" -}}
{{- $own := include "numacast.selectorLabels" . | fromYaml }}
{{- mergeOverwrite (dict) .root.Values.commonLabels (.podLabels | default dict) $own | toYaml }}
{{- end }}

{{/* An object's metadata. Takes (dict "root" $ "component" "agent" "name" (its whole name) and perhaps
     "annotations" (dict ...), "cluster" true for one without a namespace, "namespace" for another than the release's). */}}
{{- define "numacast.metadata" -}}
name: {{ .name | quote }}
{{- if not .cluster }}
namespace: {{ .namespace | default .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- include "numacast.labels" . | nindent 2 }}
{{- with mergeOverwrite (dict) .root.Values.commonAnnotations (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "numacast.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Takes (dict "root" $ "component" "agent"); components are agent, controller and purge. */}}
{{- define "numacast.serviceAccountName" -}}
{{- $account := index .root.Values.serviceAccount .component }}
{{- if and (not $account.create) (not $account.name) }}
{{- fail (printf "serviceAccount.%s.name: with serviceAccount.%s.create: false it has to be the name of an account that exists" .component .component) }}
{{- end }}
{{- $account.name | default (printf "%s-%s" (include "numacast.fullname" .root) .component) }}
{{- end }}

{{/* Where the host's files are in the agent's container. */}}
{{- define "numacast.hostRoot" -}}
/host
{{- end }}

{{/* Is it the agent's pod source that decides? "true" where the kubelet's Pods API may be asked. */}}
{{- define "numacast.usesPodsApi" -}}
{{- $config := include "numacast.agentConfig" . | fromYaml }}
{{- $source := dig "pods" "source" "auto" $config }}
{{- $view := dig "fingerprint" "view" "scheduler" $config }}
{{- if or (eq $source "podsApi") (and (eq $source "auto") (ne $view "scheduler")) }}true{{ end }}
{{- end }}

{{/* "true" where the agent asks the kubelet's HTTPS port: for its configuration, or for its pods. */}}
{{- define "numacast.asksKubelet" -}}
{{- $config := include "numacast.agentConfig" . | fromYaml }}
{{- $source := dig "pods" "source" "auto" $config }}
{{- $view := dig "fingerprint" "view" "scheduler" $config }}
{{- $pods := or (eq $source "kubelet") (and (eq $source "auto") (ne $view "scheduler")) }}
{{- if or $pods (has (dig "kubelet" "config" "source" "auto" $config) (list "auto" "configz")) }}true{{ end }}
{{- end }}

{{/* Health and metrics on the pod's address, which the kubelet and a scraper reach. */}}
{{- define "numacast.endpoints" -}}
health:
  address: ":9743"
metrics:
  address: ":9742"
  {{- if .Values.metricsTls.secretName }}
  tls:
    certFile: /etc/numacast-tls/tls.crt
    keyFile: /etc/numacast-tls/tls.key
    {{- if .Values.metricsTls.verifyClients }}
    clientCaFile: /etc/numacast-tls/ca.crt
    {{- end }}
  {{- end }}
{{- end }}

{{/* The agent's configuration file: the values' `config` over what the mounts say. */}}
{{- define "numacast.agentConfig" -}}
{{- $root := include "numacast.hostRoot" . }}
{{- $kubelet := dict "source" "configz" }}
{{- with .Values.kubelet }}
{{- if .configFile }}
{{- $kubelet = dict "source" "file" "file" (printf "%s%s" $root .configFile) }}
{{- end }}
{{- with .configDir }}
{{- $_ := set $kubelet "dir" (printf "%s%s" $root .) }}
{{- end }}
{{- end }}
{{- $own := include "numacast.endpoints" . | fromYaml }}
{{- $_ := set $own "host" (dict "root" $root "proc" "/proc") }}
{{- $_ := set $own "kubelet" (dict "dir" (printf "%s%s" $root .Values.kubelet.dir) "devicePlugins" (printf "%s%s" $root .Values.kubelet.devicePluginsDir) "config" $kubelet) }}
{{- mergeOverwrite $own (deepCopy .Values.config) | toYaml }}
{{- end }}

{{/* The controller's configuration file, which the purge hook and `helm test` read as well. */}}
{{- define "numacast.controllerConfig" -}}
{{- $fullname := include "numacast.fullname" . }}
{{- $own := include "numacast.endpoints" . | fromYaml }}
{{- $_ := set $own "controller" (dict "namespace" .Release.Namespace "daemonSet" (printf "%s-agent" $fullname) "lease" (printf "%s-controller" $fullname)) }}
{{- mergeOverwrite $own (deepCopy .Values.controller.config) | toYaml }}
{{- end }}

{{/* The port of an endpoint such as health.address; nothing for `none`.
     Takes (dict "config" (the configuration) "key" "health" "of" "config"). */}}
{{- define "numacast.port" -}}
{{- $address := dig .key "address" "none" .config | toString }}
{{- if ne $address "none" }}
{{- if or (hasPrefix "127." $address) (hasPrefix "[::1]" $address) }}
{{- fail (printf "%s.%s.address: %s is reached from inside the pod only; use %q, or none" .of .key $address (printf ":%s" (regexFind "[0-9]+$" $address))) }}
{{- end }}
{{- regexFind "[0-9]+$" $address }}
{{- end }}
{{- end }}

{{/* A container's ports. Takes the configuration's dict, as numacast.port does without the key. */}}
{{- define "numacast.ports" -}}
{{- $metrics := include "numacast.port" (merge (dict "key" "metrics") .) }}
{{- $health := include "numacast.port" (merge (dict "key" "health") .) }}
{{- if or $metrics $health }}
ports:
{{- with $metrics }}
- {name: metrics, containerPort: {{ . }}, protocol: TCP}
{{- end }}
{{- if and $health (ne $health $metrics) }}
- {name: health, containerPort: {{ $health }}, protocol: TCP}
{{- end }}
{{- end }}
{{- end }}

{{/* A container's probes; none where health is not served.
     Takes (dict "probes" (the values) "config" ... "of" ...). */}}
{{- define "numacast.probes" -}}
{{- $port := include "numacast.port" (merge (dict "key" "health") .) }}
{{- if $port }}
{{- range $name, $path := dict "startup" "/startupz" "readiness" "/readyz" "liveness" "/livez" }}
{{ $name }}Probe:
  httpGet: {path: {{ $path }}, port: {{ $port }}}
  {{- toYaml (index $.probes $name) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The credentials of a pod: what the client library looks for, and no longer than an hour. */}}
{{- define "numacast.tokenVolume" -}}
name: api-access
projected:
  sources:
  - serviceAccountToken: {path: token, expirationSeconds: 3600}
  - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
  - downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}
{{- end }}

{{- define "numacast.tokenMount" -}}
{name: api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* "true" where what is below a path is seen through the mount of another. Takes (list path other). */}}
{{- define "numacast.below" -}}
{{- if hasPrefix (printf "%s/" (index . 1)) (printf "%s/" (index . 0)) }}true{{ end }}
{{- end }}

{{/* The host paths that the agent sees, as a YAML list of {name, path, type, mount}, every one read-only. */}}
{{- define "numacast.hostPaths" -}}
{{- $kubelet := .Values.kubelet }}
{{- $paths := list (dict "name" "sys" "path" "/sys" "type" "Directory" "mount" (dict "recursiveReadOnly" "IfPossible")) }}
{{- if $kubelet.mountDir }}
{{- /* A mount that did not follow the host's would keep the volumes of pods that are gone. */}}
{{- $paths = append $paths (dict "name" "kubelet" "path" $kubelet.dir "type" "Directory" "mount" (dict "mountPropagation" "HostToContainer")) }}
{{- end }}
{{- $wanted := list (dict "name" "pod-resources" "path" (printf "%s/pod-resources" $kubelet.dir) "type" "Directory") }}
{{- $wanted = append $wanted (dict "name" "device-plugins" "path" $kubelet.devicePluginsDir "type" "Directory") }}
{{- if include "numacast.usesPodsApi" . }}
{{- /* Kubelets that have no Pods API have no directory for it either. */}}
{{- $wanted = append $wanted (dict "name" "pods-api" "path" (printf "%s/pods-api" $kubelet.dir) "type" "DirectoryOrCreate") }}
{{- end }}
{{- with $kubelet.configFile }}
{{- $wanted = append $wanted (dict "name" "kubelet-config" "path" . "type" "File") }}
{{- end }}
{{- with $kubelet.configDir }}
{{- $wanted = append $wanted (dict "name" "kubelet-config-dir" "path" . "type" "Directory") }}
{{- end }}
{{- range $wanted }}
{{- if not (and $kubelet.mountDir (include "numacast.below" (list .path $kubelet.dir))) }}
{{- $paths = append $paths . }}
{{- end }}
{{- end }}
{{- toYaml $paths }}
{{- end }}

{{/* The part of a pod's spec that controller, purge hook and check share: who it is and where it runs.
     Takes (dict "root" $ "component" "controller"), the component being that of the account. */}}
{{- define "numacast.controllerPod" -}}
{{- with .root.Values.controller -}}
serviceAccountName: {{ include "numacast.serviceAccountName" $ | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $.root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
dnsPolicy: {{ .dnsPolicy }}
{{- with .podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* What their containers share. */}}
{{- define "numacast.controllerContainer" -}}
image: {{ include "numacast.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: [/numacast]
env:
- {name: POD_NAME, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}}
{{- with .root.Values.controller.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
resources:
  {{- toYaml .root.Values.controller.resources | nindent 2 }}
securityContext:
  {{- toYaml .root.Values.controller.securityContext | nindent 2 }}
{{- end }}

{{- define "numacast.controllerMounts" -}}
- {name: config, mountPath: /etc/numacast, readOnly: true}
- {{ include "numacast.tokenMount" .root }}
{{- if .root.Values.metricsTls.secretName }}
- {name: metrics-tls, mountPath: /etc/numacast-tls, readOnly: true}
{{- end }}
{{- with .root.Values.controller.extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "numacast.controllerVolumes" -}}
- name: config
  configMap: {name: {{ include "numacast.fullname" .root }}-controller}
- {{ include "numacast.tokenVolume" .root | nindent 2 | trim }}
{{- with .root.Values.metricsTls.secretName }}
- name: metrics-tls
  secret: {secretName: {{ . }}}
{{- end }}
{{- with .root.Values.controller.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Who else owns the CRD of NodeResourceTopology; nothing where nobody does, or nobody can be asked. */}}
{{- define "numacast.crdOwner" -}}
{{- if .Values.lookup }}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "noderesourcetopologies.topology.node.k8s.io" }}
{{- $notes := .metadata.annotations | default dict }}
{{- $release := get $notes "meta.helm.sh/release-name" }}
{{- $namespace := get $notes "meta.helm.sh/release-namespace" }}
{{- if not $release }}
{{- print "somebody else, without Helm" }}
{{- else if not (and (eq $release $.Release.Name) (eq $namespace $.Release.Namespace)) }}
{{- printf "the Helm release %s/%s" $namespace $release }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
