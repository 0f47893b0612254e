// Command exclusive prints which pods have exclusive resources, by the plugin's own code.
//
//	exclusive            by the rule of the release that this is built with
//	exclusive ZONES      by the rule of v0.35.7 and later: ZONES are the resources that the object's zones name, with commas
//	                     between. No module of such a release is to be had. What it adds to the rule (upstream #978 and
//	                     #984) is written down here once more.
//
// Standard input is a PodList as JSON. Standard output is a JSON array with one boolean for each pod.
package main

import (
	"encoding/json"
	"log"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesourcetopology/resourcerequests"
)

func main() {
	log.SetFlags(0)
	var list corev1.PodList
	if err := json.NewDecoder(os.Stdin).Decode(&list); err != nil {
		log.Fatalf("exclusive: standard input is no PodList: %v", err)
	}
	rule := resourcerequests.AreExclusiveForPod
	if len(os.Args) == 2 {
		zones := strings.Split(os.Args[1], ",")
		rule = func(pod *corev1.Pod) bool { return areExclusive(pod, zones) }
	}
	results := make([]bool, len(list.Items))
	for i := range list.Items {
		results[i] = rule(&list.Items[i])
	}
	if err := json.NewEncoder(os.Stdout).Encode(results); err != nil {
		log.Fatal(err)
	}
}

func areExclusive(pod *corev1.Pod, zones []string) bool {
	qos := v1qos.GetPodQOS(pod)
	containers := slices.Clone(pod.Spec.Containers)
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, container)
		}
	}
	for _, container := range containers {
		for name, quantity := range container.Resources.Requests {
			counts := v1helper.IsNativeResource(name) || slices.Contains(zones, string(name))
			if counts && resourcerequests.IsExclusive(qos, name, quantity) {
				return true
			}
		}
	}
	return false
}
