package main

import (
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

// Labels that the kubelet puts on every container.
const (
	labelNamespace = "io.kubernetes.pod.namespace"
	labelPod       = "io.kubernetes.pod.name"
)

// image is the one image that the runtime has; pods name it.
const image = "pause:latest"

// containerRuntime is upstream's own fake: pods become Running, nothing is executed.
type containerRuntime struct {
	fake *fake.RemoteRuntime
}

func startRuntime(socket string) (*containerRuntime, error) {
	runtime := fake.NewFakeRemoteRuntime()
	runtime.ImageService.SetFakeImageSize(1024) // images set from here on; the kubelet refuses one of size 0
	runtime.ImageService.SetFakeImages([]string{image})
	if err := runtime.Start("unix://" + socket); err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	return &containerRuntime{fake: runtime}, nil
}

// exit ends the running containers of a pod as if their processes had. The
// kubelet notices at its next look at the runtime, within a second.
func (r *containerRuntime) exit(namespace, pod string, code int32) error {
	service := r.fake.RuntimeService
	service.Lock()
	defer service.Unlock()
	ended := 0
	for _, c := range service.Containers {
		if c.State != cri.ContainerState_CONTAINER_RUNNING ||
			c.Labels[labelNamespace] != namespace || c.Labels[labelPod] != pod {
			continue
		}
		ended++
		c.State = cri.ContainerState_CONTAINER_EXITED
		c.FinishedAt = time.Now().UnixNano()
		c.ExitCode = code
		c.Reason = "Completed"
		if code != 0 {
			c.Reason = "Error"
		}
	}
	if ended == 0 {
		return fmt.Errorf("no container of pod %s/%s is running", namespace, pod)
	}
	return nil
}
