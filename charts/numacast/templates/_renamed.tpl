{{/* Values of earlier charts, and what replaces them. The more specific ones are first. */}}
{{- define "numacast.renamed" -}}
- crd.install: set crds.enabled
- crd: set crds
- controller.replicas: set controller.replicaCount
- controller.updateStrategy: set controller.strategy
- controller.config.controller: set its keys in controller.config itself, such as controller.config.garbage.maxPercent
- controller.runtimeClassName: it is gone, because the controller runs with every runtime
- controller.dnsPolicy: it is gone, because the controller resolves no names
- controller.terminationGracePeriodSeconds: it is gone; it is 10 seconds
- agent.dnsPolicy: it is gone; it is ClusterFirst
- agent.terminationGracePeriodSeconds: it is gone; it is 10 seconds
- scheduler.replicas: set scheduler.replicaCount
- config.kubelet.config.source: set kubelet.configSource
- config.kubelet.config.file: set kubelet.configFile, which mounts the file as well
- config.kubelet.config.dir: set kubelet.configDir, which mounts the directory as well
- config.kubelet.config.overrides: set kubelet.configOverrides
- config.kubelet.dir: set kubelet.dir, which moves the mount as well
- config.kubelet.devicePluginsDir: set kubelet.devicePluginsDir, which moves the mount as well
- config.kubelet: set its keys in kubelet
- config.controller: set its keys in controller.config
- config.host: it is gone, because the chart mounts the host's files and sets their paths
- serviceMonitor: set podMonitor, which is for agents, controller and scheduler
- openshift: "set platform: openshift, which creates the SecurityContextConstraints"
- priorityQuota.pods: it is gone, because the quota does not limit the number of pods
- purge.backoffLimit: it is gone; it is 2
- purge.activeDeadlineSeconds: it is gone; it is 280 seconds
{{- end }}

{{/* Fails for a value of an earlier chart. */}}
{{- define "numacast.checkRenamed" -}}
{{- $root := . }}
{{- range include "numacast.renamed" . | fromYamlArray }}
{{- range $old, $instead := . }}
{{- $value := $root.Values }}
{{- range $key := splitList "." $old }}
{{- $value = index (ternary $value dict (kindIs "map" $value)) $key }}
{{- end }}
{{- if not (kindIs "invalid" $value) }}
{{- fail (printf "%s: %s" $old $instead) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
