{{/* The metadata of a monitoring object. Labels and annotations of its own values override others.
     Takes the dict of numacast.metadata, and "values". */}}
{{- define "numacast.monitorMetadata" -}}
{{- $metadata := include "numacast.metadata" . | fromYaml }}
{{- $_ := set $metadata "labels" (mergeOverwrite $metadata.labels (.values.labels | default dict)) }}
{{- with .values.annotations }}
{{- $_ := set $metadata "annotations" (mergeOverwrite ($metadata.annotations | default dict) .) }}
{{- end }}
{{- toYaml $metadata }}
{{- end }}

{{/* How a component's port is scraped. Takes (dict "root" $ "component" "agent" "job" (the label's value)). */}}
{{- define "numacast.scrape" -}}
{{- $values := .root.Values.podMonitor }}
path: /metrics
{{- if eq .component "scheduler" }}
scheme: https
# kube-scheduler's certificate is self-signed.
tlsConfig: {insecureSkipVerify: true}
{{- else if .root.Values.metricsTls.secretName }}
scheme: https
tlsConfig:
  {{- include "numacast.scrapeTls" .root | nindent 2 }}
{{- end }}
{{- with $values.interval }}
interval: {{ . }}
{{- end }}
{{- with $values.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
relabelings:
# Alerts and dashboard use these labels.
- {targetLabel: job, replacement: {{ .job | quote }}}
- {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
{{- with $values.relabelings }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.metricRelabelings }}
metricRelabelings:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "numacast.scrapeTls" -}}
{{- $tls := .Values.podMonitor.tlsConfig | default dict }}
{{- if and .Values.metricsTls.verifyClients (not (and (hasKey $tls "cert") (hasKey $tls "keySecret"))) }}
{{- fail "podMonitor.tlsConfig: with metricsTls.verifyClients the scraper needs `cert` and `keySecret` there" }}
{{- end }}
{{- $own := dict "ca" (dict "secret" (dict "name" .Values.metricsTls.secretName "key" "ca.crt")) "serverName" (printf "%s-metrics" (include "numacast.fullname" .)) }}
{{- mergeOverwrite $own (deepCopy $tls) | toYaml }}
{{- end }}

{{/* The series selectors of alerts and dashboard, as a YAML dict. */}}
{{- define "numacast.selectors" -}}
{{- $values := .Values.prometheusRule }}
{{- $fullname := include "numacast.fullname" . }}
{{- $own := "job=\"%s-%s\", namespace=\"%s\"" }}
agent: {{ $values.agentSelector | default (printf $own $fullname "agent" .Release.Namespace) | quote }}
controller: {{ $values.controllerSelector | default (printf $own $fullname "controller" .Release.Namespace) | quote }}
{{- end }}

{{/* An alert with the changes from the values; empty if they disable it.
     Takes (dict "root" $ "rule" (of files/rules.yaml)). */}}
{{- define "numacast.rule" -}}
{{- $values := .root.Values.prometheusRule }}
{{- $name := .rule.alert }}
{{- $change := index $values.alerts $name | default dict }}
{{- if dig "enabled" true $change }}
{{- $page := printf "https://github.com/numacast/numacast/blob/v%s/docs/troubleshooting.md" .root.Chart.AppVersion }}
{{- $link := dict "runbook_url" (printf "%s#%s" ($values.runbookUrl | default $page) (lower $name)) }}
{{- $rule := mergeOverwrite (deepCopy .rule) (dict "labels" (deepCopy $values.alertLabels) "annotations" $link) }}
{{- mergeOverwrite $rule (omit (deepCopy $change) "enabled") | toYaml }}
{{- end }}
{{- end }}
