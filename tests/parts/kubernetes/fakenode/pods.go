package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	apitest "k8s.io/cri-api/pkg/apis/testing"
	"k8s.io/cri-client/pkg/fake"
)

// podRuntime is the fake runtime that also runs containers: those of other images
// than its own, each by a program that gets the kubelet's request. Every pod has
// its own address, below 127.
type podRuntime struct {
	*fake.RemoteRuntime
	program string
	dir     string

	mu        sync.Mutex
	requested map[string]*cri.CreateContainerRequest
	running   map[string]*process
	sandboxes int
}

// process is one container that runs.
type process struct {
	pid   int
	ended chan struct{}
}

func newPodRuntime(of *fake.RemoteRuntime, program, dir string) *podRuntime {
	return &podRuntime{
		RemoteRuntime: of,
		program:       program,
		dir:           dir,
		requested:     map[string]*cri.CreateContainerRequest{},
		running:       map[string]*process{},
	}
}

// listen serves the runtime, in place of the fake's own server.
func (r *podRuntime) listen(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	r.RuntimeService.FakeStatus = &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true},
		{Type: cri.NetworkReady, Status: true},
	}}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, r)
	cri.RegisterImageServiceServer(server, r)
	go server.Serve(listener) //nolint:errcheck // it ends with the process
	return nil
}

// RunPodSandbox gives the sandbox an address that no other pod of this machine has.
func (r *podRuntime) RunPodSandbox(ctx context.Context, requested *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	made, err := r.RemoteRuntime.RunPodSandbox(ctx, requested)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.sandboxes++
	number := r.sandboxes
	r.mu.Unlock()
	r.RuntimeService.Lock()
	defer r.RuntimeService.Unlock()
	if sandbox := r.RuntimeService.Sandboxes[made.PodSandboxId]; sandbox != nil {
		pid := os.Getpid()
		sandbox.Network.Ip = fmt.Sprintf("127.%d.%d.%d", 64+pid>>8%128, pid%256, 1+number%254)
	}
	return made, nil
}

// CreateContainer keeps the request.
func (r *podRuntime) CreateContainer(ctx context.Context, requested *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	made, err := r.RemoteRuntime.CreateContainer(ctx, requested)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requested[made.ContainerId] = requested
	return made, nil
}

// StartContainer starts the program for a container that is to be run.
func (r *podRuntime) StartContainer(ctx context.Context, requested *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	r.mu.Lock()
	config := r.requested[requested.ContainerId]
	r.mu.Unlock()
	if config == nil || isOwnImage(config.Config.Image.Image) {
		return r.RemoteRuntime.StartContainer(ctx, requested)
	}
	started, err := r.RemoteRuntime.StartContainer(ctx, requested)
	if err != nil {
		return nil, err
	}
	if err := r.start(requested.ContainerId, config); err != nil {
		log.Printf("container %s: %v", requested.ContainerId, err)
		return nil, err
	}
	return started, nil
}

func isOwnImage(image string) bool { return image == imagePause || image == imageTrue }

func (r *podRuntime) start(id string, config *cri.CreateContainerRequest) error {
	r.RuntimeService.Lock()
	ip := ""
	if sandbox := r.RuntimeService.Sandboxes[config.PodSandboxId]; sandbox != nil {
		ip = sandbox.Network.Ip
	}
	r.RuntimeService.Unlock()
	text, err := protojson.Marshal(config)
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, fmt.Sprintf("container-%x.json", time.Now().UnixNano()))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	path := filepath.Join(config.SandboxConfig.LogDirectory, config.Config.LogPath)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	output, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	started := make(chan error)
	go func() {
		// The kernel ends the program when this thread ends, and it waits here.
		runtime.LockOSThread()
		defer output.Close() //nolint:errcheck // what was written stays
		command := exec.Command(r.program, file, ip)
		command.Stdout, command.Stderr = output, output
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := command.Start(); err != nil {
			started <- err
			return
		}
		one := &process{pid: command.Process.Pid, ended: make(chan struct{})}
		r.mu.Lock()
		r.running[id] = one
		r.mu.Unlock()
		started <- nil
		err := command.Wait()
		r.ended(id, err)
		close(one.ended)
	}()
	return <-started
}

// ended records that a container's program has ended, for the kubelet's next request.
func (r *podRuntime) ended(id string, err error) {
	code := int32(0)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		code = int32(exit.ExitCode())
	case err != nil:
		code = 137
	}
	r.mu.Lock()
	delete(r.running, id)
	r.mu.Unlock()
	(&containerRuntime{fake: r.RemoteRuntime}).end(code, func(c *apitest.FakeContainer) bool { return c.Id == id })
}

// StopContainer terminates the program, and kills it if it does not end in time.
func (r *podRuntime) StopContainer(ctx context.Context, requested *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	r.mu.Lock()
	one := r.running[requested.ContainerId]
	r.mu.Unlock()
	if one == nil {
		return r.RemoteRuntime.StopContainer(ctx, requested)
	}
	syscall.Kill(one.pid, syscall.SIGTERM) //nolint:errcheck // it may have ended
	select {
	case <-one.ended:
	case <-time.After(time.Duration(requested.Timeout) * time.Second):
		syscall.Kill(one.pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
		<-one.ended
	}
	return &cri.StopContainerResponse{}, nil
}
