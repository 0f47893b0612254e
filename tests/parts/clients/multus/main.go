// Multus' own code at the podresources socket, as its daemon calls it for a pod: which devices the pod has,
// and which one each of its networks gets. Nothing here but the calls.
package main

import (
	"encoding/json"
	"flag"
	"os"
	"strings"

	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/k8sclient"
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/kubeletclient"
	"gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/types"
	v1 "k8s.io/api/core/v1"
)

// result is what is printed.
type result struct {
	// Devices by resource.
	Devices map[string][]string `json:"devices"`
	// Networks are those of the pod's annotation, in its order.
	Networks []network `json:"networks"`
	Error    string    `json:"error,omitempty"`
}

// network is a device, and the configuration that the network's plugin would be called with.
type network struct {
	DeviceID string          `json:"deviceID"`
	Config   json.RawMessage `json:"config"`
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "a kubeconfig")
	of := flag.String("pod", "", "namespace/name")
	flag.Parse()
	var result result
	if err := result.read(*kubeconfig, *of); err != nil {
		result.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		panic(err)
	}
}

func (r *result) read(kubeconfig, of string) error {
	client, err := k8sclient.GetK8sClient(kubeconfig, nil)
	if err != nil {
		return err
	}
	namespace, name, _ := strings.Cut(of, "/")
	pod, err := client.GetPod(namespace, name)
	if err != nil {
		return err
	}
	if err := r.readDevices(pod); err != nil {
		return err
	}
	// Without a map of devices, as in CmdAdd.
	conf := types.NetConf{Kubeconfig: kubeconfig}
	if _, _, err := k8sclient.TryLoadPodDelegates(pod, &conf, client, nil); err != nil {
		return err
	}
	for _, delegate := range conf.Delegates {
		r.Networks = append(r.Networks, network{delegate.DeviceID, delegate.Bytes})
	}
	return nil
}

func (r *result) readDevices(pod *v1.Pod) error {
	// An empty path is the default, and all that Multus passes.
	client, err := kubeletclient.GetResourceClient("")
	if err != nil {
		return err
	}
	devices, err := client.GetPodResourceMap(pod)
	if err != nil {
		return err
	}
	r.Devices = map[string][]string{}
	for resource, info := range devices {
		r.Devices[resource] = info.DeviceIDs
	}
	return nil
}
