{{/* The value of the label app.kubernetes.io/name. */}}
{{- define "numacast.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The prefix of all object names: at most 52 characters, so that the longest suffix fits. Unlike a release's name, a
     Service's name has no dots and begins with a letter. */}}
{{- define "numacast.fullname" -}}
{{- $name := include "numacast.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- $full = regexReplaceAll "^([0-9])" ($full | replace "." "-") "n${1}" }}
{{- .Values.fullnameOverride | default $full | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* The selector of a component's pods. A workload's selector is immutable. Takes (dict "root" $ "component" "agent"). */}}
{{- define "numacast.selectorLabels" -}}
app.kubernetes.io/name: {{ include "numacast.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The selector of one of the agents' DaemonSets: selectors of workloads must not overlap. Takes a context of
     numacast.setAgents. */}}
{{- define "numacast.poolLabels" -}}
{{ include "numacast.selectorLabels" (dict "root" . "component" "agent") }}
numacast.io/pool: {{ .pool | quote }}
{{- end }}

{{/* The labels of a component's objects. Takes (dict "root" $ "component" "agent"). */}}
{{- define "numacast.labels" -}}
{{- $own := include "numacast.selectorLabels" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" (.root.Chart.AppVersion | toString) }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") }}
{{- mergeOverwrite (dict) (.root.Values.commonLabels | default dict) $own | toYaml }}
{{- end }}

{{/* The labels of a component's pods, without those that change with the chart's version.
     Takes (dict "root" $ "component" "agent" "podLabels" ...). */}}
{{- define "numacast.podLabels" -}}
{{- $own := include "numacast.selectorLabels" . | fromYaml }}
{{- mergeOverwrite (dict) (.root.Values.commonLabels | default dict) (.podLabels | default dict) $own | toYaml }}
{{- end }}

{{/* An object's metadata. Takes (dict "root" $ "component" "agent" "name" (its full name)), and optionally "annotations"
     (dict ...), "cluster" true for a cluster-scoped object, and "namespace" if it is not the release's. */}}
{{- define "numacast.metadata" -}}
name: {{ .name | quote }}
{{- if not .cluster }}
namespace: {{ .namespace | default .root.Release.Namespace | quote }}
{{- end }}
labels:
  {{- include "numacast.labels" . | nindent 2 }}
{{- with mergeOverwrite (dict) (.root.Values.commonAnnotations | default dict) (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The labels and annotations of a workload that values can add. Takes (dict "root" $ "component" "agent" "name" ...). */}}
{{- define "numacast.workloadMetadata" -}}
{{- $values := index .root.Values .component }}
{{- $metadata := include "numacast.metadata" . | fromYaml }}
{{- $_ := set $metadata "labels" (mergeOverwrite (dict) ($values.labels | default dict) $metadata.labels) }}
{{- with $values.annotations }}
{{- $_ := set $metadata "annotations" (mergeOverwrite ($metadata.annotations | default dict) .) }}
{{- end }}
{{- toYaml $metadata }}
{{- end }}

{{- define "numacast.image" -}}
{{- include "numacast.imageOf" (dict "root" . "image" .Values.image "tag" .Chart.AppVersion) }}
{{- end }}

{{/* An image by digest or tag. Takes (dict "root" $ "image" (the values) "tag" (the default)). */}}
{{- define "numacast.imageOf" -}}
{{- $repository := .image.repository }}
{{- with (.root.Values.global | default dict).imageRegistry }}
{{- /* The first part of a repository is a registry if it has a dot or a port. */}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") }}
{{- end }}
{{- if .image.digest }}
{{- printf "%s@%s" $repository .image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (.image.tag | default .tag) }}
{{- end }}
{{- end }}

{{/* What all pods have in common, besides their account. Takes (dict "root" $ "component" "agent"). */}}
{{- define "numacast.pod" -}}
serviceAccountName: {{ include "numacast.serviceAccountName" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with concat ((.root.Values.global | default dict).imagePullSecrets | default list) (.root.Values.imagePullSecrets | default list) | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* The agents need the host's users, whose files they read. */}}
{{- if and (ne .component "agent") (not (kindIs "invalid" .root.Values.hostUsers)) }}
hostUsers: {{ .root.Values.hostUsers }}
{{- end }}
terminationGracePeriodSeconds: 10
{{- end }}

{{/* The security context of pods other than the agents'. */}}
{{- define "numacast.unprivileged" -}}
{{- $context := deepCopy (.Values.controller.podSecurityContext | default dict) }}
{{- if not (include "numacast.platformDefaults" . | fromYaml).namespaceUsers }}
{{- $context = merge $context (dict "runAsUser" 65532 "runAsGroup" 65532) }}
{{- end }}
{{- with $context }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where a component's pods run. Takes its values. */}}
{{- define "numacast.placement" -}}
{{- range $key := list "nodeSelector" "affinity" "tolerations" }}
{{- with index $ $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The update strategy of a workload: other types than RollingUpdate allow no rollingUpdate, which the defaults have. */}}
{{- define "numacast.strategy" -}}
{{- ternary . (pick . "type") (eq .type "RollingUpdate") | toYaml }}
{{- end }}

{{/* The release of scheduler-plugins: the value, or the newest one for the cluster's version. A scheduler may be one minor
     version older than the API server. */}}
{{- define "numacast.schedulerRelease" -}}
{{- $releases := dict "30" "v0.30.12" "31" "v0.31.8" "32" "v0.32.7" "33" "v0.33.5" "34" "v0.34.7" }}
{{- $minor := regexFind "^[0-9]+" .Capabilities.KubeVersion.Minor }}
{{- .Values.scheduler.image.tag | default (get $releases $minor) | default "v0.35.7" }}
{{- end }}

{{/* What the scheduler's deployment means for the agents: the rule of the plugin's release. */}}
{{- define "numacast.agentConfigForScheduler" -}}
{{- if .Values.scheduler.enabled }}
{{- $minor := include "numacast.schedulerRelease" . | regexFind "^v0\\.[0-9]+" }}
fingerprint: {pluginRelease: {{ ternary "v0.34" "v0.35" (has $minor (list "v0.30" "v0.31" "v0.32" "v0.33" "v0.34")) }}}
{{- end }}
{{- end }}

{{/* The name of a component's service account. Takes (dict "root" $ "component" "agent"); components are agent,
     controller, scheduler and purge. */}}
{{- define "numacast.serviceAccountName" -}}
{{- $account := index .root.Values.serviceAccount .component }}
{{- if and (not $account.create) (not $account.name) }}
{{- fail (printf "serviceAccount.%s.name: with serviceAccount.%s.create: false this must be the name of an existing account" .component .component) }}
{{- end }}
{{- $account.name | default (printf "%s-%s" (include "numacast.fullname" .root) .component) }}
{{- end }}

{{/* Where the host's files are mounted in the agent's container. */}}
{{- define "numacast.hostRoot" -}}
/host
{{- end }}

{{/* Where the agents write their objects: apiServer, none, or a file. */}}
{{- define "numacast.publishTo" -}}
{{- dig "publish" "to" "apiServer" (.Values.config | default dict) }}
{{- end }}

{{/* "true" if the agents write objects to the API server. */}}
{{- define "numacast.publishes" -}}
{{- if eq (include "numacast.publishTo" .) "apiServer" }}true{{ end }}
{{- end }}

{{/* "true" if the agents read the node, for an object. */}}
{{- define "numacast.readsNode" -}}
{{- if ne (include "numacast.publishTo" .) "none" }}true{{ end }}
{{- end }}

{{/* Who reads the objects. */}}
{{- define "numacast.consumer" -}}
{{- if include "numacast.publishes" . }}
{{- (include "numacast.agentConfig" . | fromYaml).consumer | default "schedulerPlugins" }}
{{- else }}none{{ end }}
{{- end }}

{{/* The agent's pod sources, as a YAML list: the defaults for the consumer, unless their own keys are set. */}}
{{- define "numacast.podSources" -}}
{{- $config := include "numacast.agentConfig" . | fromYaml }}
{{- $consumer := include "numacast.consumer" . }}
{{- $direct := has $consumer (list "kaiDirect" "schedulerPluginsDirect") }}
{{- $ofConsumer := ternary "scheduler" "none" (eq $consumer "schedulerPlugins") }}
{{- $view := dig "fingerprint" "view" nil $config | default $ofConsumer }}
{{- $source := dig "pods" "source" nil $config | default "apiServer" }}
{{- $annotations := dig "proxy" "annotations" dict $config }}
{{- $merges := and (include "numacast.proxies" .) (concat (get $annotations "koordinator" | default (ternary list (list "devices") (hasKey $annotations "koordinator"))) (get $annotations "mappings" | default list)) }}
{{- if or (eq $source "none") (not (or $merges (include "numacast.readsNode" .))) }}
{{- toYaml list }}
{{- else if ne $source "auto" }}
{{- toYaml (list $source) }}
{{- else if or $direct (eq $view "scheduler") (eq $consumer "kai") }}
{{- toYaml (list "apiServer") }}
{{- else }}
{{- toYaml (list "apiServer" "podsApi" "kubelet") }}
{{- end }}
{{- end }}

{{/* "true" if the kubelet's Pods API may be a pod source. */}}
{{- define "numacast.usesPodsApi" -}}
{{- $served := include "numacast.podsApiSource" . }}
{{- if or (has "podsApi" (include "numacast.podSources" . | fromYamlArray)) (has $served (list "auto" "podsApi")) }}true{{ end }}
{{- end }}

{{/* "true" if the agent reads the kubelet's configuration from its HTTPS port. */}}
{{- define "numacast.readsConfigz" -}}
{{- if and (include "numacast.readsNode" .) (has (include "numacast.kubelet" . | fromYaml).configSource (list "auto" "configz")) }}true{{ end }}
{{- end }}

{{/* "true" if the agent reads from the kubelet's HTTPS port: the kubelet's configuration, or its pods. */}}
{{- define "numacast.readsKubelet" -}}
{{- $pods := has "kubelet" (include "numacast.podSources" . | fromYamlArray) }}
{{- $served := eq (include "numacast.podsApiSource" .) "kubelet" }}
{{- if or $pods $served (include "numacast.readsConfigz" .) }}true{{ end }}
{{- end }}

{{/* "true" if the agent serves the podresources proxy. */}}
{{- define "numacast.proxies" -}}
{{- if dig "proxy" "enabled" false (.Values.config | default dict) }}true{{ end }}
{{- end }}

{{/* "true" if the agents read ResourceClaims. YAML reads a bare `off` as a boolean. */}}
{{- define "numacast.claims" -}}
{{- if and (include "numacast.readsNode" .) (not (has (dig "dra" "source" "auto" (.Values.config | default dict) | toString) (list "off" "false"))) }}true{{ end }}
{{- end }}

{{/* The pod source of the Pods API that the agent serves: podsApi.source, or `none` if it does not serve one. */}}
{{- define "numacast.podsApiSource" -}}
{{- $config := .Values.config | default dict }}
{{- if dig "podsApi" "enabled" false $config }}{{ dig "podsApi" "source" "auto" $config }}{{ else }}none{{ end }}
{{- end }}

{{/* The agent's sockets on the host, as a YAML list of {key, volume, dir, group, socket, on}. A directory has the same
     path on the host and in the agent's container. The agent derives the socket's mode from its group. With `enabled: false`
     in the values, the agent answers on a socket that is left there that the service is off. */}}
{{- define "numacast.served" -}}
{{- $config := .Values.config | default dict }}
{{- $served := list }}
{{- $proxy := dict "key" "proxy" "volume" "proxy" "dir" "/run/numacast/pod-resources" "socket" "kubelet.sock" }}
{{- $podsApi := dict "key" "podsApi" "volume" "served-pods" "dir" "/run/numacast/pods-api" "socket" "pods-api.sock" }}
{{- range list $proxy $podsApi }}
{{- $of := get $config .key | default dict }}
{{- if hasKey $of "enabled" }}
{{- $served = append $served (merge (dict "dir" ($of.dir | default .dir) "group" $of.group "on" $of.enabled) .) }}
{{- end }}
{{- end }}
{{- $pods := get $config "podsApi" | default dict }}
{{- if and (hasKey $pods "enabled") (kindIs "map" $pods.podInfo) }}
{{- $info := dict "key" "podsApi.podInfo" "volume" "served-pod-info" "socket" "pod-info.sock" "on" $pods.enabled }}
{{- $served = append $served (merge (dict "dir" ($pods.podInfo.dir | default "/run/numacast/pod-info") "group" $pods.podInfo.group) $info) }}
{{- end }}
{{- toYaml $served }}
{{- end }}

{{/* The agent's pod is in the groups of its sockets: without capabilities, root can give files only to its own groups. */}}
{{- define "numacast.agentPodSecurityContext" -}}
{{- $context := deepCopy (.Values.agent.podSecurityContext | default dict) }}
{{- range include "numacast.served" . | fromYamlArray }}
{{- if not (kindIs "invalid" .group) }}
{{- $_ := set $context "supplementalGroups" (append (get $context "supplementalGroups" | default list) (int64 .group) | uniq) }}
{{- end }}
{{- end }}
{{- toYaml $context }}
{{- end }}

{{/* Requests and limits of the agent's container. The default of the memory limit depends on what the agent serves. */}}
{{- define "numacast.agentResources" -}}
{{- $mebibytes := 64 }}
{{- if ne (include "numacast.podsApiSource" .) "none" }}{{ $mebibytes = add $mebibytes 192 }}{{ end }}
{{- if include "numacast.proxies" . }}{{ $mebibytes = add $mebibytes 128 }}{{ end }}
{{- include "numacast.resources" (list .Values.agent.resources $mebibytes) }}
{{- end }}

{{/* Likewise of the controller's. */}}
{{- define "numacast.controllerResources" -}}
{{- include "numacast.resources" (list .Values.controller.resources (ternary 384 128 (ne .Values.controller.ui.secretName ""))) }}
{{- end }}

{{/* Takes (list resources mebibytes): the default of the memory limit, unless there are to be no limits. */}}
{{- define "numacast.resources" -}}
{{- $resources := deepCopy (first . | default dict) }}
{{- if hasKey $resources "limits" }}
{{- $_ := set $resources "limits" (merge $resources.limits (dict "memory" (printf "%dMi" (last . | int)))) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* Health and metrics on the pod's address, which the kubelet and Prometheus can reach. */}}
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

{{/* The agent's configuration file: `config` of the values overrides what the chart sets. */}}
{{- define "numacast.agentConfig" -}}
{{- include "numacast.check" . }}
{{- $root := include "numacast.hostRoot" . }}
{{- $kubelet := omit (include "numacast.kubelet" . | fromYaml) "mountDir" }}
{{- range $key := list "dir" "devicePluginsDir" "configFile" "configDir" }}
{{- with get $kubelet $key }}
{{- $_ := set $kubelet $key (printf "%s%s" $root .) }}
{{- end }}
{{- end }}
{{- $own := include "numacast.endpoints" . | fromYaml }}
{{- $_ := set $own "host" (dict "root" $root "proc" "/proc") }}
{{- $_ := set $own "kubelet" $kubelet }}
{{- range include "numacast.served" . | fromYamlArray }}
{{- $dir := dict "dir" .dir }}
{{- range splitList "." .key | reverse }}{{ $dir = dict . $dir }}{{ end }}
{{- $own = mergeOverwrite $own $dir }}
{{- end }}
{{- $own = merge $own (include "numacast.agentConfigForScheduler" . | fromYaml) }}
{{- $config := mergeOverwrite $own (deepCopy (.Values.config | default dict)) }}
{{- include "numacast.checkShared" (dict "config" $config "of" "config") }}
{{- toYaml $config }}
{{- end }}

{{/* The controller's configuration file, also used by the purge hook and `helm test`. */}}
{{- define "numacast.controllerConfig" -}}
{{- $fullname := include "numacast.fullname" . }}
{{- $own := include "numacast.endpoints" . | fromYaml }}
{{- $daemonSets := ternary (include "numacast.daemonSets" . | fromJsonArray) list .Values.agent.enabled }}
{{- $_ := set $own "controller" (dict "daemonSets" $daemonSets "lease" (printf "%s-controller" $fullname)) }}
{{- with dig "publish" "apiVersion" "" (.Values.config | default dict) }}
{{- /* The controller reads the objects in the version in which the agents write them. */}}
{{- $_ := set $own "publish" (dict "apiVersion" .) }}
{{- end }}
{{- /* Nudges are of no use to consumers without the overreserving cache. */}}
{{- if ne (include "numacast.consumer" .) "schedulerPlugins" }}
{{- $_ := set $own.controller "nudge" "off" }}
{{- else if .Values.scheduler.enabled }}
{{- $labels := list }}
{{- range $key, $value := include "numacast.selectorLabels" (dict "root" . "component" "scheduler") | fromYaml }}
{{- $labels = append $labels (printf "%s=%s" $key $value) }}
{{- end }}
{{- $_ := set $own.controller "scheduler" (printf "%s/%s" .Release.Namespace (join "," $labels)) }}
{{- $_ := set $own.controller "restartScheduler" true }}
{{- if gt (int .Values.scheduler.cacheResyncPeriodSeconds) 10 }}
{{- $_ := set $own.controller "nudge" (printf "%ds" (int .Values.scheduler.cacheResyncPeriodSeconds)) }}
{{- end }}
{{- end }}
{{- $values := deepCopy (.Values.controller.config | default dict) }}
{{- range $key, $value := $values }}
{{- if not (has $key (list "log" "metrics" "health" "publish")) }}
{{- $_ := set $own.controller $key $value }}
{{- end }}
{{- end }}
{{- $config := mergeOverwrite $own (pick $values "log" "metrics" "health" "publish") }}
{{- include "numacast.checkShared" (dict "config" $config "of" "controller.config") }}
{{- toYaml $config }}
{{- end }}

{{/* The port of an endpoint such as health.address; empty for `none`.
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

{{/* A container's ports. Takes the dict of numacast.port, without the key. */}}
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

{{/* A container's probes; none if health is not served. The first probe of readiness follows that of startup, when the first
     object is written: an earlier one would fail, with an Event. Startup does not depend on the API server.
     Takes (dict "probes" (the values) "config" ... "of" ...). */}}
{{- define "numacast.probes" -}}
{{- $port := include "numacast.port" (merge (dict "key" "health") .) }}
{{- if $port }}
{{- range $name, $path := dict "startup" "/livez" "readiness" "/readyz" "liveness" "/livez" }}
{{ $name }}Probe:
  httpGet: {path: {{ $path }}, port: {{ $port }}}
  {{- with index ($.probes | default dict) $name }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A pod's credentials, where client libraries look for them, with a token that is valid for an hour. */}}
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

{{/* "true" if a path is another path, or is below it. Takes (list path other). */}}
{{- define "numacast.below" -}}
{{- if hasPrefix (printf "%s/" (index . 1)) (printf "%s/" (index . 0)) }}true{{ end }}
{{- end }}

{{/* The host paths that the agent mounts, as a YAML list of {name, path, type, mount}. `mount` overrides the default:
     read-only, and below /host. */}}
{{- define "numacast.hostPaths" -}}
{{- $kubelet := include "numacast.kubelet" . | fromYaml }}
{{- $reads := include "numacast.readsNode" . }}
{{- $proxies := include "numacast.proxies" . }}
{{- if not $reads }}{{ $_ := unset $kubelet "mountDir" }}{{ end }}
{{- /* Not /sys itself: mounts below a read-only mount stay writable unless runtime and kernel support otherwise, so root
     could write to /sys/fs/cgroup. Nothing is mounted below these two. */}}
{{- $paths := list }}
{{- if or $reads $proxies }}
{{- $paths = append $paths (dict "name" "sys-devices" "path" "/sys/devices" "type" "Directory") }}
{{- end }}
{{- if $reads }}
{{- $paths = append $paths (dict "name" "sys-mm" "path" "/sys/kernel/mm" "type" "Directory") }}
{{- end }}
{{- if or $proxies (include "numacast.claims" .) }}
{{- /* PCI addresses: links to directories below /sys/devices. Not pci itself, which some machines do not have. */}}
{{- $paths = append $paths (dict "name" "sys-bus" "path" "/sys/bus" "type" "Directory") }}
{{- end }}
{{- if $kubelet.mountDir }}
{{- /* Without propagation, the mount would keep the volumes of deleted pods. */}}
{{- $paths = append $paths (dict "name" "kubelet" "path" $kubelet.dir "type" "Directory" "mount" (dict "mountPropagation" "HostToContainer")) }}
{{- end }}
{{- if and $kubelet.mountDir (include "numacast.claims" .) }}
{{- /* The CPUs that drivers gave out by count. */}}
{{- $paths = append $paths (dict "name" "cdi" "path" "/var/run/cdi" "type" "DirectoryOrCreate") }}
{{- end }}
{{- /* The only writable directories of the host. Clients mount them too, at the same path. */}}
{{- range include "numacast.served" . | fromYamlArray }}
{{- $paths = append $paths (dict "name" .volume "path" .dir "type" "DirectoryOrCreate" "mount" (dict "mountPath" .dir "readOnly" false)) }}
{{- end }}
{{- $wanted := list }}
{{- if or $reads $proxies }}
{{- $wanted = append $wanted (dict "name" "pod-resources" "path" (printf "%s/pod-resources" $kubelet.dir) "type" "Directory") }}
{{- end }}
{{- with and $reads $kubelet.devicePluginsDir }}
{{- $wanted = append $wanted (dict "name" "device-plugins" "path" . "type" "Directory") }}
{{- end }}
{{- if include "numacast.usesPodsApi" . }}
{{- /* Kubelets without a Pods API do not have this directory. */}}
{{- $wanted = append $wanted (dict "name" "pods-api" "path" (printf "%s/pods-api" $kubelet.dir) "type" "DirectoryOrCreate") }}
{{- end }}
{{- with and $reads $kubelet.configFile }}
{{- $wanted = append $wanted (dict "name" "kubelet-config" "path" . "type" "File") }}
{{- end }}
{{- with and $reads $kubelet.configDir }}
{{- $wanted = append $wanted (dict "name" "kubelet-config-dir" "path" . "type" "Directory") }}
{{- end }}
{{- range $wanted }}
{{- if not (and $kubelet.mountDir (include "numacast.below" (list .path $kubelet.dir))) }}
{{- $paths = append $paths . }}
{{- end }}
{{- end }}
{{- toYaml $paths }}
{{- end }}

{{/* The part of the pod spec that controller, purge hook and check share: account and scheduling.
     Takes (dict "root" $ "component" "controller"); the component is that of the account. */}}
{{- define "numacast.controllerPod" -}}
{{ include "numacast.pod" . }}
{{- include "numacast.unprivileged" .root }}
{{- include "numacast.placement" .root.Values.controller }}
{{- end }}

{{/* The part of the container that they share. */}}
{{- define "numacast.controllerContainer" -}}
image: {{ include "numacast.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
command: [/numacast]
env:
- {name: POD_NAME, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}}
{{- with .root.Values.controller.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with include "numacast.controllerResources" .root | fromYaml }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.controller.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "numacast.controllerMounts" -}}
- {name: config, mountPath: /etc/numacast, readOnly: true}
- {{ include "numacast.tokenMount" .root }}
{{- end }}

{{- define "numacast.controllerVolumes" -}}
- name: config
  configMap: {name: {{ include "numacast.fullname" .root }}-controller}
- {{ include "numacast.tokenVolume" .root | nindent 2 | trim }}
{{- end }}

{{/* The owner of the CRD of NodeResourceTopology; empty if this release owns it, there is no CRD, or the cluster cannot be
     queried. */}}
{{- define "numacast.crdOwner" -}}
{{- if .Values.lookup }}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "noderesourcetopologies.topology.node.k8s.io" }}
{{- $notes := .metadata.annotations | default dict }}
{{- $release := get $notes "meta.helm.sh/release-name" }}
{{- $namespace := get $notes "meta.helm.sh/release-namespace" }}
{{- if not $release }}
{{- print "another installation, without Helm" }}
{{- else if not (and (eq $release $.Release.Name) (eq $namespace $.Release.Namespace)) }}
{{- printf "the Helm release %s/%s" $namespace $release }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The scheduler's configuration file. `numacast config scheduler` prints the same profile. */}}
{{- define "numacast.schedulerConfig" -}}
{{- $values := .Values.scheduler }}
{{- $version := "kubescheduler.config.k8s.io/v1" }}
{{- $plugin := "NodeResourceTopologyMatch" }}
{{- $args := dict "apiVersion" $version "kind" (printf "%sArgs" $plugin) "scoringStrategy" (dict "type" $values.scoringStrategy) }}
{{- if eq (include "numacast.consumer" .) "schedulerPlugins" }}
{{- $informer := dig "fingerprint" "informerMode" "dedicated" (include "numacast.agentConfig" . | fromYaml) }}
{{- $_ := set $args "cacheResyncPeriodSeconds" (int $values.cacheResyncPeriodSeconds) }}
{{- $_ := set $args "cache" (dict "foreignPodsDetect" "All" "resyncMethod" "Autodetect" "informerMode" (title $informer)) }}
{{- else }}
{{- $_ := set $args "discardReservedNodes" true }}
{{- end }}
{{- $enabled := dict "multiPoint" (dict "enabled" (list (dict "name" $plugin))) }}
{{- $profile := dict "schedulerName" $values.name "plugins" $enabled "pluginConfig" (list (dict "name" $plugin "args" $args)) }}
{{- $lease := printf "%s-scheduler" (include "numacast.fullname" .) }}
{{- $election := dict "leaderElect" true "resourceLock" "leases" "resourceName" $lease "resourceNamespace" .Release.Namespace }}
{{- $own := dict "apiVersion" $version "kind" "KubeSchedulerConfiguration" "leaderElection" $election "profiles" (list $profile) }}
{{- $own = merge $own (dict "podInitialBackoffSeconds" 1 "podMaxBackoffSeconds" 2) }}
{{- range $key, $_ := $values.config }}
{{- if hasKey $own $key }}
{{- fail (printf "scheduler.config.%s: the chart sets it" $key) }}
{{- end }}
{{- end }}
{{- merge $own (deepCopy $values.config) | toYaml }}
{{- end }}

{{/* The kubelet's HTTPS port. */}}
{{- define "numacast.kubeletPort" -}}
{{- $address := (include "numacast.kubelet" . | fromYaml).address | default "" }}
{{- regexFind "[0-9]+$" (regexFind "(^|[\\]a-z0-9.-]):[0-9]+$" $address) | default "10250" }}
{{- end }}

{{/* Fails for values that contradict each other, or what the chart sets. */}}
{{- define "numacast.check" -}}
{{- $config := .Values.config | default dict }}
{{- include "numacast.checkRenamed" . }}
{{- include "numacast.checkPools" . }}
{{- $controller := .Values.controller.config | default dict }}
{{- if and (not (dig "lease" "a lease" $controller)) (gt (int .Values.controller.replicaCount) 1) }}
{{- fail "controller.config.lease: without a Lease there is no leader election; set controller.replicaCount to 1" }}
{{- end }}
{{- if and .Values.scheduler.enabled (has (dig "consumer" "" $config) (list "kai" "kaiDirect" "none")) }}
{{- fail (printf "scheduler.enabled: config.consumer is %s, but this scheduler reads the objects; remove config.consumer, or set it to schedulerPlugins or schedulerPluginsDirect" $config.consumer) }}
{{- end }}
{{- $root := . }}
{{- if not (include "numacast.publishes" .) }}
{{- range list "controller" "purge" "scheduler" }}
{{- if (get $root.Values .).enabled }}
{{- fail (printf "%s.enabled: with config.publish.to: %s the API server gets no objects; set it to false, as values-without-objects.yaml does" . (include "numacast.publishTo" $root)) }}
{{- end }}
{{- end }}
{{- end }}
{{- range list "controller" "purge" "scheduler" }}
{{- if eq (include "numacast.serviceAccountName" (dict "root" $root "component" .)) (include "numacast.serviceAccountName" (dict "root" $root "component" "agent")) }}
{{- fail (printf "serviceAccount.%s.name: the agents have that account, and would get its permission to delete" .) }}
{{- end }}
{{- end }}
{{- if and .Values.purge.enabled (not .Values.rbac.create) .Values.serviceAccount.purge.create }}
{{- fail "purge.enabled: with rbac.create: false the hook's account has no permissions, and every uninstall would fail; set purge.enabled to false, or name an account that has them (serviceAccount.purge.create: false)" }}
{{- end }}
{{- range include "numacast.served" . | fromYamlArray }}
{{- include "numacast.checkServed" (dict "root" $root "served" .) }}
{{- end }}
{{- $pool := "" }}
{{- if and (hasKey . "pool") (ne .pool "default") }}
{{- $pool = printf "agent.pools: %s: " .pool }}
{{- end }}
{{- $kubelet := include "numacast.kubelet" . | fromYaml }}
{{- $maxNodes := dig "configOverrides" "topologyManagerPolicyOptions" "max-allowable-numa-nodes" "8" $kubelet | toString }}
{{- if not (regexMatch "^([89]|[1-9][0-9]{1,5})$" $maxNodes) }}
{{- fail (printf "%skubelet.configOverrides.topologyManagerPolicyOptions.max-allowable-numa-nodes: %s: kubelets accept numbers from 8 on, and admissionPolicy rejects others" $pool $maxNodes) }}
{{- end }}
{{- if and (eq $kubelet.configSource "file") (not $kubelet.configFile) (not $kubelet.mountDir) }}
{{- fail (printf "%skubelet.configSource: file: no file is mounted; set kubelet.configFile to the kubelet's configuration file" $pool) }}
{{- end }}
{{- if and $kubelet.configDir (not $kubelet.configFile) (not $kubelet.mountDir) }}
{{- fail (printf "%skubelet.configDir: drop-ins are read with a configuration file; set kubelet.configFile as well" $pool) }}
{{- end }}
{{- end }}

{{/* Fails if a socket has no directory of its own, since the agent can write there.
     Takes (dict "root" $ "served" (one of numacast.served)). */}}
{{- define "numacast.checkServed" -}}
{{- $dir := .served.dir }}
{{- $key := printf "config.%s.dir" .served.key }}
{{- if not (regexMatch "^(/[^/]+){2,}$" $dir) }}
{{- fail (printf "%s: %s: the agent can write to this host directory; it must be an absolute path of two parts or more, without a slash at its end" $key $dir) }}
{{- end }}
{{- if regexMatch "/\\.\\.?(/|$)" $dir }}
{{- fail (printf "%s: %s: a host path must not contain . or .." $key $dir) }}
{{- end }}
{{- $kubelet := include "numacast.kubelet" .root | fromYaml }}
{{- range $of, $other := dict "kubelet.dir" $kubelet.dir "kubelet.devicePluginsDir" $kubelet.devicePluginsDir }}
{{- if and $other (or (include "numacast.below" (list $dir $other)) (include "numacast.below" (list $other $dir))) }}
{{- fail (printf "%s: %s is, contains or is below a directory of the kubelet (%s: %s); the socket needs a directory of its own" $key $dir $of $other) }}
{{- end }}
{{- end }}
{{- range include "numacast.served" .root | fromYamlArray }}
{{- if and (ne .key $.served.key) (or (include "numacast.below" (list $dir .dir)) (include "numacast.below" (list .dir $dir))) }}
{{- fail (printf "%s: %s is, contains or is below the directory of another socket (config.%s.dir: %s); each needs a directory of its own" $key $dir .key .dir) }}
{{- end }}
{{- end }}
{{- range list "/sys" "/proc" "/dev" "/etc" "/boot" "/usr" "/bin" "/sbin" "/lib" "/lib64" "/root" }}
{{- if include "numacast.below" (list $dir .) }}
{{- fail (printf "%s: %s is below %s, where the agent must not be able to write" $key $dir .) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Warnings about these values and this cluster, as a YAML list of sentences. */}}
{{- define "numacast.warnings" -}}
{{- $config := include "numacast.agentConfig" . | fromYaml }}
{{- $warnings := list }}
{{- with include "numacast.platformGuessed" . }}
{{- $warnings = append $warnings . }}
{{- end }}
{{- if not (include "numacast.publishes" .) }}
{{- else if not .Values.admissionPolicy.enabled }}
{{- $pods := ternary ", and status, labels and annotations of every pod" "" (eq (include "numacast.consumer" .) "kai") }}
{{- $warnings = append $warnings (printf "any agent's token, and the controller's, can write the object of every node%s: admissionPolicy.enabled is false." $pods) }}
{{- else if ne .Values.admissionPolicy.onMissingClaim "Deny" }}
{{- $pods := ternary ", and annotate every pod" "" (eq (include "numacast.consumer" .) "kai") }}
{{- $warnings = append $warnings (printf "an agent's token that names no node can write the object of every node%s: admissionPolicy.onMissingClaim is Allow." $pods) }}
{{- end }}
{{- if and .Values.agent.enabled (include "numacast.readsNode" .) .Values.kubelet.mountDir }}
{{- $warnings = append $warnings "the agents can read and write the volumes of every pod on their node, including Secrets: kubelet.mountDir is true." }}
{{- end }}
{{- if and .Values.agent.enabled (include "numacast.readsConfigz" .) (semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version) }}
{{- $warnings = append $warnings (printf "kubelets report their configuration from Kubernetes 1.33 on, and this is %s: set kubelet.configFile, or objects have no policies." .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if .Values.scheduler.enabled }}
{{- if and (gt (int (regexFind "^[0-9]+" .Capabilities.KubeVersion.Minor)) 36) (not .Values.scheduler.image.tag) }}
{{- $warnings = append $warnings (printf "no known release of scheduler-plugins is for Kubernetes 1.%s; v0.35.7 is used: see whether there is a newer one, and set scheduler.image.tag." .Capabilities.KubeVersion.Minor) }}
{{- end }}
{{- $restarts := and .Values.controller.enabled (include "numacast.controllerConfig" . | fromYaml | dig "controller" "restartScheduler" false) }}
{{- if and (eq (include "numacast.consumer" .) "schedulerPlugins") (not $restarts) }}
{{- $warnings = append $warnings (printf "the scheduler ignores objects that are created after it started, and no controller restarts it: restart it whenever nodes have joined (`kubectl --namespace %s rollout restart deployment/%s-scheduler`)." .Release.Namespace (include "numacast.fullname" .)) }}
{{- end }}
{{- end }}
{{- if not .Values.rbac.create }}
{{- $warnings = append $warnings "no roles are created (rbac.create is false): docs/rbac.md lists what the accounts need." }}
{{- end }}
{{- with include "numacast.crdOwner" . }}
{{- if $.Values.crds.enabled }}
{{- $warnings = append $warnings (printf "the CRD of NodeResourceTopology belongs to %s and is not changed; if its owner removes it, all objects are deleted." .) }}
{{- end }}
{{- end }}
{{- if .Values.lookup }}
{{- $warnings = concat $warnings (include "numacast.clusterWarnings" . | fromYamlArray) }}
{{- end }}
{{- toYaml $warnings }}
{{- end }}

{{/* The warnings for which the cluster is queried. */}}
{{- define "numacast.clusterWarnings" -}}
{{- $config := include "numacast.agentConfig" . | fromYaml }}
{{- $warnings := list }}
{{- $version := dig "publish" "apiVersion" "v1alpha2" $config }}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "noderesourcetopologies.topology.node.k8s.io" }}
{{- $served := list }}
{{- range .spec.versions }}
{{- if .served }}{{ $served = append $served .name }}{{ end }}
{{- end }}
{{- if and (include "numacast.crdOwner" $) (not (has $version $served)) }}
{{- $warnings = append $warnings (printf "that CRD serves %s but not %s, which the agents write: replace it (`numacast crd | kubectl apply -f -`), or set config.publish.apiVersion." (join ", " $served) $version) }}
{{- end }}
{{- else }}
{{- if and (include "numacast.publishes" .) (not .Values.crds.enabled) }}
{{- $warnings = append $warnings "there is no CRD of NodeResourceTopology, and crds.enabled is false: nothing is published until there is one (`numacast crd | kubectl apply -f -`)." }}
{{- end }}
{{- end }}
{{- with lookup "v1" "Namespace" "" .Release.Namespace }}
{{- $level := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" . }}
{{- if and $level (ne $level "privileged") }}
{{- $warnings = append $warnings (printf "the namespace enforces the Pod Security Standard %s, which forbids the agents' host paths: `kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged`." $level $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items }}
{{- $name := printf "%s/%s" .metadata.namespace .metadata.name }}
{{- $text := printf "%s %s" .metadata.name (dig "app.kubernetes.io/name" "" (.metadata.labels | default dict)) }}
{{- $images := list }}
{{- range .spec.template.spec.containers }}
{{- $images = append $images (printf "%s %s" .image (join " " (concat (.command | default list) (.args | default list)))) }}
{{- end }}
{{- if not (include "numacast.publishes" $) }}
{{- else if regexMatch "topology-updater|resource-topology-exporter|koordlet" (join " " (append $images $text)) }}
{{- $warnings = append $warnings (printf "the DaemonSet %s seems to write NodeResourceTopology objects as well; only one program may write an object." $name) }}
{{- else if and (eq (get (.metadata.labels | default dict) "app.kubernetes.io/component") "agent") (eq (get (.metadata.labels | default dict) "app.kubernetes.io/name") "numacast") (not (and (eq .metadata.namespace $.Release.Namespace) (has .metadata.name (include "numacast.daemonSets" $ | fromJsonArray)))) }}
{{- $warnings = append $warnings (printf "the DaemonSet %s belongs to another numacast; only one may write an object." $name) }}
{{- end }}
{{- end }}
{{- toYaml $warnings }}
{{- end }}

{{/* Fails if health, which is plain HTTP, would share its address with metrics over TLS. */}}
{{- define "numacast.checkShared" -}}
{{- $address := dig "metrics" "address" "" .config }}
{{- if and (ne $address "none") (eq $address (dig "health" "address" "" .config)) (dig "metrics" "tls" "certFile" "" .config) }}
{{- fail (printf "%s.health.address: health is plain HTTP and cannot share %s with metrics over TLS" .of $address) }}
{{- end }}
{{- end }}
