package main

import (
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	apitest "k8s.io/cri-api/pkg/apis/testing"
	"k8s.io/cri-client/pkg/fake"
)

// Labels that the kubelet puts on every container.
const (
	labelNamespace = "io.kubernetes.pod.namespace"
	labelPod       = "io.kubernetes.pod.name"
)

// The images that the runtime has; pods name them.
const (
	imagePause = "pause:latest" // a container that runs until it is stopped
	imageTrue  = "true:latest"  // one that has done its work as soon as it is seen running
)

// endEvery is how often containers that have done their work are looked for.
const endEvery = 20 * time.Millisecond

// containerRuntime is upstream's own fake: pods become Running, nothing is executed.
type containerRuntime struct {
	fake *fake.RemoteRuntime
}

// startRuntime serves the runtime; with a program it runs containers of other images
// than its own by it, and keeps their descriptions in dir.
func startRuntime(socket, program, dir string) (*containerRuntime, error) {
	runtime := fake.NewFakeRemoteRuntime()
	runtime.ImageService.SetFakeImageSize(1024) // images set from here on; the kubelet rejects one of size 0
	runtime.ImageService.SetFakeImages([]string{imagePause, imageTrue})
	listen := func() error { return runtime.Start("unix://" + socket) }
	if program != "" {
		listen = func() error { return newPodRuntime(runtime, program, dir).listen(socket) }
	}
	if err := listen(); err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	r := &containerRuntime{fake: runtime}
	go r.endWhatIsDone()
	return r, nil
}

// endWhatIsDone ends the containers of imageTrue, for as long as the process lives.
func (r *containerRuntime) endWhatIsDone() {
	for {
		r.end(0, func(c *apitest.FakeContainer) bool { return c.ImageRef == imageTrue })
		time.Sleep(endEvery)
	}
}

// exit ends the running containers of a pod as if their processes had ended. The
// kubelet detects that at its next poll of the runtime, within a second.
func (r *containerRuntime) exit(namespace, pod string, code int32) error {
	ended := r.end(code, func(c *apitest.FakeContainer) bool {
		return c.Labels[labelNamespace] == namespace && c.Labels[labelPod] == pod
	})
	if ended == 0 {
		return fmt.Errorf("no container of pod %s/%s is running", namespace, pod)
	}
	return nil
}

// end ends the running containers that are chosen, and counts them.
func (r *containerRuntime) end(code int32, chosen func(*apitest.FakeContainer) bool) int {
	service := r.fake.RuntimeService
	service.Lock()
	defer service.Unlock()
	ended := 0
	for _, c := range service.Containers {
		if c.State != cri.ContainerState_CONTAINER_RUNNING || !chosen(c) {
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
	return ended
}
