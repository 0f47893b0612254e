package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// lookEvery is how often a plugin looks whether the kubelet was restarted.
	lookEvery = 50 * time.Millisecond
	// registerWithin bounds one registration.
	registerWithin = 2 * time.Second
)

// device is one device as a test describes it.
type device struct {
	ID        string  `json:"id"`
	NUMA      []int64 `json:"numa"`
	Unhealthy bool    `json:"unhealthy"`
}

func (d device) toAPI() *api.Device {
	out := &api.Device{ID: d.ID, Health: api.Healthy}
	if d.Unhealthy {
		out.Health = api.Unhealthy
	}
	if len(d.NUMA) > 0 {
		out.Topology = &api.TopologyInfo{}
		for _, id := range d.NUMA {
			out.Topology.Nodes = append(out.Topology.Nodes, &api.NUMANode{ID: id})
		}
	}
	return out
}

// plugins are the device plugins of the node, one for each resource.
type plugins struct {
	dir        string
	byResource map[string]*plugin
}

func newPlugins(dir string) *plugins {
	return &plugins{dir: dir, byResource: map[string]*plugin{}}
}

// setDevices sets the devices of a resource; the first time it starts the plugin.
func (p *plugins) setDevices(resource string, devices []device) error {
	if resource == "" {
		return errors.New("setDevices needs a resource")
	}
	one, found := p.byResource[resource]
	if !found {
		one = &plugin{
			resource: resource,
			dir:      p.dir,
			changed:  make(chan struct{}),
			sent:     map[stream]<-chan struct{}{},
			running:  true,
		}
		p.byResource[resource] = one
		go one.run()
	}
	one.setDevices(devices)
	return nil
}

func (p *plugins) stop(resource string) error  { return p.setRunning(resource, false) }
func (p *plugins) start(resource string) error { return p.setRunning(resource, true) }

func (p *plugins) setRunning(resource string, running bool) error {
	one, found := p.byResource[resource]
	if !found {
		return fmt.Errorf("no plugin serves %q", resource)
	}
	one.setRunning(running)
	return nil
}

// served fails unless the kubelet has been sent what every running plugin has now.
func (p *plugins) served() error {
	for resource, one := range p.byResource {
		if !one.served() {
			return fmt.Errorf("the kubelet does not know the devices of %s", resource)
		}
	}
	return nil
}

// plugin serves one resource over the device plugin API.
//
// Upstream has a stub of its own, which waits ten seconds after the kubelet came
// back and panics if it does not get through; tests that restart the kubelet all
// the time need one that is back at once.
type plugin struct {
	resource string
	dir      string

	mu      sync.Mutex
	devices []device
	changed chan struct{} // closed, and replaced, when devices change
	running bool
	sent    map[stream]<-chan struct{} // what closes when the devices sent last are no longer so

	server     *grpc.Server
	listened   int      // how often it has listened
	lost       bool     // the kubelet ended its stream from this server
	registered identity // the kubelet's socket at the last registration

	api.UnsafeDevicePluginServer
}

type stream = grpc.ServerStreamingServer[api.ListAndWatchResponse]

// identity distinguishes a socket from another one at the same path.
type identity struct {
	inode uint64
	made  syscall.Timespec
}

func identify(path string) (identity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return identity{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, fmt.Errorf("%s has no inode", path)
	}
	return identity{inode: stat.Ino, made: stat.Ctim}, nil
}

func (p *plugin) setDevices(devices []device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = devices
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *plugin) setRunning(running bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = running
	if !running {
		p.halt()
	}
}

func (p *plugin) served() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, changed := range p.sent {
		if changed == p.changed {
			return true
		}
	}
	return !p.running
}

// run keeps the plugin served and registered for as long as the process lives.
func (p *plugin) run() {
	said := ""
	for {
		if err := p.look(); err != nil && !errors.Is(err, fs.ErrNotExist) && err.Error() != said {
			said = err.Error()
			log.Printf("plugin %s: %v", p.resource, err)
		}
		time.Sleep(lookEvery)
	}
}

// look does what is missing. A kubelet that starts removes every socket in the
// directory and then makes its own: the first means serving again, the second
// registering again. So does a stream that the kubelet ended.
func (p *plugin) look() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return nil
	}
	kubelet := filepath.Join(p.dir, "kubelet.sock")
	now, err := identify(kubelet)
	if err != nil {
		return err
	}
	if _, err := os.Stat(p.path()); p.server == nil || p.lost || errors.Is(err, fs.ErrNotExist) {
		if err := p.listen(); err != nil {
			return err
		}
	}
	if now == p.registered {
		return nil
	}
	if err := p.register(kubelet); err != nil {
		return err
	}
	p.registered = now
	return nil
}

// socket is another name each time the plugin listens. A kubelet that gets another
// registration before it noticed the end of the last connection mistakes one for the
// other (runClient and deregisterClient of its plugin/v1beta1/handler.go): 1.37 then
// answers "already connected" to this socket forever, and older ones close the new
// connection, after which this plugin registers again.
func (p *plugin) socket() string {
	return fmt.Sprintf("%s-%d.sock", strings.ReplaceAll(p.resource, "/", "_"), p.listened)
}

func (p *plugin) path() string { return filepath.Join(p.dir, p.socket()) }

func (p *plugin) listen() error {
	p.halt()
	p.listened++
	p.lost = false
	listener, err := net.Listen("unix", p.path())
	if err != nil {
		return err
	}
	p.server = grpc.NewServer()
	api.RegisterDevicePluginServer(p.server, p)
	go p.server.Serve(listener) //nolint:errcheck // it ends when halt stops it
	return nil
}

// halt ends the server, which takes its socket with it.
func (p *plugin) halt() {
	if p.server != nil {
		p.server.Stop()
		p.server = nil
	}
	os.Remove(p.path()) //nolint:errcheck // it may well be gone
	p.registered = identity{}
}

func (p *plugin) register(kubelet string) error {
	ctx, cancel := context.WithTimeout(context.Background(), registerWithin)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing hangs on it
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     p.socket(),
		ResourceName: p.resource,
		Options:      &api.DevicePluginOptions{},
	})
	return err
}

// snapshot returns the current devices, and a channel that is closed when they change.
func (p *plugin) snapshot() ([]*api.Device, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	devices := make([]*api.Device, 0, len(p.devices))
	for _, d := range p.devices {
		devices = append(devices, d.toAPI())
	}
	return devices, p.changed
}

// begin returns which server it is that a stream begins at.
func (p *plugin) begin() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listened
}

// note remembers what a stream has been sent.
func (p *plugin) note(to stream, sent <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent[to] = sent
}

// end forgets a stream.
func (p *plugin) end(of stream, server int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sent, of)
	if server == p.listened {
		p.lost = true
	}
}

// ListAndWatch sends the devices, and all of them again whenever they change.
func (p *plugin) ListAndWatch(_ *api.Empty, to stream) error {
	defer p.end(to, p.begin())
	for {
		devices, changed := p.snapshot()
		if err := to.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		p.note(to, changed)
		select {
		case <-changed:
		case <-to.Context().Done():
			return nil
		}
	}
}

// GetDevicePluginOptions reports that nothing optional is served.
func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// Allocate accepts the kubelet's choice.
func (p *plugin) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	out := &api.AllocateResponse{}
	for range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return out, nil
}

// GetPreferredAllocation is not offered in the options, and so never called.
func (p *plugin) GetPreferredAllocation(context.Context, *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	return &api.PreferredAllocationResponse{}, nil
}

// PreStartContainer is not offered in the options, and so never called.
func (p *plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}
