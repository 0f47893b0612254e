{{/* What each platform supplies where the values do not: the kubelet's configuration (`kubelet`), the SELinux type of the
     agents, whether the namespace has users of its own, SecurityContextConstraints, and a ResourceQuota. docs/install.md
     lists what was tried.

     kubeadm, kind: kubelets' serving certificates are self-signed (kubernetes/kubeadm#1223, #1602), so the file that kubeadm
       writes is read. Flags that override it (/var/lib/kubelet/kubeadm-flags.env) are not seen.
     k3s, rke2: drop-ins below /var/lib/rancher (k3s-io/k3s#2116) and flags of a process that is not named kubelet set the
       configuration. The certificate is signed by the API server's CA (k3s-io/k3s#785).
     openshift: pods do not have the CA of the kubelet's certificate, so the machine config operator's file is read. An
       ordinary container may not use the kubelet's sockets; container_device_plugin_t, of container-selinux, may
       (containers/container-selinux#275, OCPBUGS-45983). Pods other than the agents' get a user of the namespace's range
       (restricted-v2), and must not request another.
     gke: it is unknown whether pods can verify the certificate, so the file is read (aquasecurity/kube-bench). Outside
       kube-system, pods with the agents' priority class need a ResourceQuota (NVIDIA/aicr#915).
     eks: kubelets have serverTLSBootstrap (awslabs/amazon-eks-ami), and EKS approves their requests.
     aks: the same for nodes with the label kubernetes.azure.com/kubelet-serving-ca=cluster (Azure/AgentBaker). */}}
{{- define "numacast.platforms" -}}
kubeadm: {kubelet: {configFile: /var/lib/kubelet/config.yaml}}
kind: {kubelet: {configFile: /var/lib/kubelet/config.yaml}}
k3s: {kubelet: {configSource: configz}}
rke2: {kubelet: {configSource: configz}}
openshift:
  kubelet: {configFile: /etc/kubernetes/kubelet.conf}
  seLinuxOptions: {type: container_device_plugin_t}
  namespaceUsers: true
  securityContextConstraints: true
gke:
  kubelet: {configFile: /home/kubernetes/kubelet-config.yaml}
  priorityQuota: true
eks: {kubelet: {configSource: configz}}
aks: {kubelet: {configSource: configz}}
generic: {kubelet: {configSource: configz}}
{{- end }}

{{/* The cluster's platform, as {name, reason, guessed}: the value, or what Capabilities and the cluster tell. */}}
{{- define "numacast.platform" -}}
{{- if ne (.Values.platform | default "auto") "auto" }}
{{- dict "name" .Values.platform "reason" "platform is set" | toJson }}
{{- else }}
{{- /* The cluster is queried once, not by each template. */}}
{{- if not (hasKey . "platformFound") }}
{{- $_ := set . "platformFound" (include "numacast.detectedPlatform" .) }}
{{- end }}
{{- .platformFound }}
{{- end }}
{{- end }}

{{- define "numacast.detectedPlatform" -}}
{{- $version := .Capabilities.KubeVersion.Version }}
{{- $found := dict }}
{{- range $name, $part := dict "k3s" "+k3s" "rke2" "+rke2" "gke" "-gke." "eks" "-eks-" }}
{{- if contains $part $version }}
{{- $found = dict "name" $name "reason" (printf "its version is %s" $version) }}
{{- end }}
{{- end }}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- $found = dict "name" "openshift" "reason" "its API server has the API group security.openshift.io" }}
{{- end }}
{{- if and (not $found) .Values.lookup }}
{{- with lookup "v1" "Namespace" "" "kube-system" }}
{{- $found = dict "name" "generic" "reason" "no other platform was recognized" "guessed" true }}
{{- if eq (dig "labels" "kubernetes.azure.com/managedby" "" .metadata) "aks" }}
{{- $found = dict "name" "aks" "reason" "kube-system has the label kubernetes.azure.com/managedby=aks" }}
{{- else if lookup "v1" "ConfigMap" "kube-system" "kubeadm-config" }}
{{- $found = dict "name" "kubeadm" "reason" "the ConfigMap kube-system/kubeadm-config exists" }}
{{- if lookup "apps/v1" "DaemonSet" "kube-system" "kindnet" }}
{{- $found = dict "name" "kind" "reason" "the DaemonSet kube-system/kindnet exists" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $found | default (dict "name" "generic" "reason" "the cluster could not be queried" "guessed" true) | toJson }}
{{- end }}

{{/* What the platform supplies. */}}
{{- define "numacast.platformDefaults" -}}
{{- get (include "numacast.platforms" . | fromYaml) (include "numacast.platform" . | fromJson).name | toYaml }}
{{- end }}

{{/* What the kubelet is like: the values, and the platform's where they are not set. */}}
{{- define "numacast.kubelet" -}}
{{- $kubelet := dict "dir" "/var/lib/kubelet" }}
{{- range $key, $value := .Values.kubelet }}
{{- if or $value (kindIs "bool" $value) }}
{{- $_ := set $kubelet $key $value }}
{{- end }}
{{- end }}
{{- $of := (include "numacast.platformDefaults" . | fromYaml).kubelet }}
{{- if $kubelet.configFile }}
{{- $of = dict "configSource" "file" }}
{{- else if has $kubelet.configSource (list "configz" "none") }}
{{- $of = dict }}
{{- end }}
{{- $kubelet = merge $kubelet $of }}
{{- merge $kubelet (dict "configSource" "file") | toYaml }}
{{- end }}

{{/* A sentence about a platform that was not recognized; empty if the values say how the kubelet's configuration is read. */}}
{{- define "numacast.platformGuessed" -}}
{{- $kubelet := .Values.kubelet }}
{{- if and (include "numacast.platform" . | fromJson).guessed .Values.agent.enabled (include "numacast.readsNode" .) (not (or $kubelet.configFile $kubelet.configSource $kubelet.certificateFingerprints $kubelet.caFile)) }}
{{- print "the agents read the kubelet's configuration from its HTTPS port, which needs a certificate that the cluster's CA signed (kubeadm's default is self-signed): set platform, kubelet.configFile or kubelet.certificateFingerprints if yours is not." }}
{{- end }}
{{- end }}

{{/* Whether a value that may be `auto` is true. Takes (dict "root" $ "value" ... "key" (of the platform)). */}}
{{- define "numacast.isOn" -}}
{{- $value := .value }}
{{- if eq (toString $value) "auto" }}
{{- $value = get (include "numacast.platformDefaults" .root | fromYaml) .key }}
{{- end }}
{{- if $value }}true{{ end }}
{{- end }}

{{/* Sets .into.all to a list of contexts, one for each DaemonSet of agents: that of all other nodes first, then the pools.
     In each, the values are those of its nodes; `pool` is its name, `daemonSet` its DaemonSet's, and `others` the labels of
     nodes that belong to an earlier pool (for the first one, to any pool), so that each node has exactly one agent.
     Takes (dict "root" $ "into" (dict)). */}}
{{- define "numacast.setAgents" -}}
{{- $root := .root }}
{{- $name := printf "%s-agent" (include "numacast.fullname" $root) }}
{{- $platform := (include "numacast.platform" $root | fromJson).name }}
{{- $others := list }}
{{- $pools := list }}
{{- range $root.Values.agent.pools }}
{{- $values := deepCopy $root.Values }}
{{- $_ := mergeOverwrite $values.agent (pick . "nodeSelector" "resources" "tolerations") }}
{{- $_ := mergeOverwrite $values.kubelet (.kubelet | default dict) }}
{{- $_ := set $values "platform" (.platform | default $platform) }}
{{- $pools = append $pools (merge (dict "Values" $values "pool" .name "daemonSet" (printf "%s-%s" $name .name) "others" $others) (omit $root "Values")) }}
{{- range $key, $value := .nodeSelector }}
{{- $others = append $others (dict "key" $key "operator" "NotIn" "values" (list $value)) }}
{{- end }}
{{- end }}
{{- $rest := merge (dict "pool" "default" "daemonSet" $name "others" $others) $root }}
{{- $_ := set .into "all" (prepend $pools $rest) }}
{{- end }}

{{/* The names of the agents' DaemonSets, as a JSON list. */}}
{{- define "numacast.daemonSets" -}}
{{- $name := printf "%s-agent" (include "numacast.fullname" .) }}
{{- $names := list $name }}
{{- range .Values.agent.pools }}
{{- $names = append $names (printf "%s-%s" $name .name) }}
{{- end }}
{{- toJson $names }}
{{- end }}

{{/* The affinity of a DaemonSet's pods, without the nodes of others. Takes a context of numacast.setAgents. */}}
{{- define "numacast.agentAffinity" -}}
{{- $affinity := deepCopy (.Values.agent.affinity | default dict) }}
{{- if .others }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- $terms := list }}
{{- range dig $required "nodeSelectorTerms" (list (dict)) $node }}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat (.matchExpressions | default list) $.others)) .) }}
{{- end }}
{{- $_ := set $node $required (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- toYaml $affinity }}
{{- end }}

{{/* Fails for pools that do not work. */}}
{{- define "numacast.checkPools" -}}
{{- $names := list "default" }}
{{- $labels := list }}
{{- range .Values.agent.pools }}
{{- if has .name $names }}
{{- fail (printf "agent.pools: %s: there are two pools of this name, or it is that of all other nodes" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- $daemonSet := printf "%s-agent-%s" (include "numacast.fullname" $) .name }}
{{- if gt (len $daemonSet) 63 }}
{{- fail (printf "agent.pools: %s: the DaemonSet's name %s has more than 63 characters; shorten the pool's name, or set fullnameOverride" .name $daemonSet) }}
{{- end }}
{{- if ne (len .nodeSelector) 1 }}
{{- fail (printf "agent.pools: %s: nodeSelector has %d labels; a pool is selected by exactly one, so that the other agents can leave out its nodes" .name (len .nodeSelector)) }}
{{- end }}
{{- $label := toJson .nodeSelector }}
{{- if has $label $labels }}
{{- fail (printf "agent.pools: %s: an earlier pool has the same nodeSelector %s, and so all of its nodes" .name $label) }}
{{- end }}
{{- $labels = append $labels $label }}
{{- end }}
{{- end }}
