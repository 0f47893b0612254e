// Command fingerprint prints the fingerprint that the NodeResourceTopologyMatch
// plugin expects of a node, computed by upstream's own library.
//
// Standard input is the API server's PodList of the node, as JSON. Standard
// output is one JSON object: the fingerprint, and the pods that are in it.
//
// Which pods the plugin counts is written down here once more, from the
// plugin's own source (podprovider.go and exclusive.go), with Kubernetes' own
// type of quantities, and shares nothing with numacast.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/k8stopologyawareschedwg/podfingerprint"
	"k8s.io/apimachinery/pkg/api/resource"
)

type podList struct {
	Items []pod `json:"items"`
}

type pod struct {
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		NodeName       string      `json:"nodeName"`
		InitContainers []container `json:"initContainers"`
		Containers     []container `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
		QOS   string `json:"qosClass"`
	} `json:"status"`
}

type container struct {
	RestartPolicy string `json:"restartPolicy"`
	Resources     struct {
		Requests map[string]resource.Quantity `json:"requests"`
	} `json:"resources"`
}

// result is the output.
type result struct {
	Fingerprint string   `json:"fingerprint"`
	Pods        []string `json:"pods"`
}

// rules are those of one plugin in one configuration.
type rules struct {
	shared    bool            // informerMode: Shared
	exclusive bool            // method with-exclusive-resources
	zones     map[string]bool // resources that the object's zones name; nil for a plugin up to v0.34
}

func main() {
	informer := flag.String("informer", "dedicated", "the plugin's informerMode: dedicated or shared")
	method := flag.String("method", podfingerprint.MethodAll, "all or with-exclusive-resources")
	zones := flag.String("zones", "", "a plugin after v0.34: the resources that the object's zones name, with commas between")
	flag.Parse()

	r := rules{shared: *informer == "shared", exclusive: *method == podfingerprint.MethodWithExclusiveResources}
	if *zones != "" {
		r.zones = map[string]bool{}
		for _, name := range strings.Split(*zones, ",") {
			r.zones[name] = true
		}
	}
	if err := r.run(os.Stdin, os.Stdout); err != nil {
		log.Fatalf("fingerprint: %v", err)
	}
}

func (r rules) run(in io.Reader, out io.Writer) error {
	var list podList
	if err := json.NewDecoder(in).Decode(&list); err != nil {
		return fmt.Errorf("standard input is no PodList: %w", err)
	}
	output := result{Pods: []string{}}
	fp := podfingerprint.NewFingerprint(len(list.Items))
	for _, p := range list.Items {
		if !r.counts(p) {
			continue
		}
		if err := fp.Add(p.Metadata.Namespace, p.Metadata.Name); err != nil {
			return err
		}
		output.Pods = append(output.Pods, p.Metadata.Namespace+"/"+p.Metadata.Name)
	}
	output.Fingerprint = fp.Sign()
	return json.NewEncoder(out).Encode(output)
}

// counts reports whether a pod is in the set.
func (r rules) counts(p pod) bool {
	if p.Spec.NodeName == "" || p.Status.Phase == "Pending" {
		return false
	}
	if r.shared && p.Status.Phase != "Running" {
		return false
	}
	return !r.exclusive || r.isExclusive(p)
}

// isExclusive depends on the specification alone, not on what the pod was allocated.
func (r rules) isExclusive(p pod) bool {
	for _, c := range p.Spec.InitContainers {
		// Up to v0.34 an init container that ends counts as well.
		if (r.zones == nil || c.RestartPolicy == "Always") && r.requestsExclusive(c, p.Status.QOS) {
			return true
		}
	}
	for _, c := range p.Spec.Containers {
		if r.requestsExclusive(c, p.Status.QOS) {
			return true
		}
	}
	return false
}

func (r rules) requestsExclusive(c container, qos string) bool {
	for name, quantity := range c.Resources.Requests {
		if !isNative(name) {
			// With any quantity.
			if r.zones == nil || r.zones[name] {
				return true
			}
			continue
		}
		if qos != "Guaranteed" {
			continue
		}
		switch {
		case name == "cpu":
			if quantity.Value()*1000 == quantity.MilliValue() && quantity.Value() > 0 {
				return true
			}
		case name == "memory", strings.HasPrefix(name, "hugepages-"):
			if quantity.Value() > 0 {
				return true
			}
		}
	}
	return false
}

// isNative: a name without a domain, or of Kubernetes' own.
func isNative(name string) bool {
	return !strings.Contains(name, "/") || strings.Contains(name, "kubernetes.io/")
}
