package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/cpuset"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// driver prepares claims.
type driver struct {
	settings settings
	client   kubernetes.Interface
	helper   *kubeletplugin.Helper
	gate     gate

	mu    sync.Mutex
	pools map[string]*pool
	book  book
	err   error // the last one in publishing slices
}

// book has the prepared claims.
type book map[types.UID]preparedClaim

type preparedClaim struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Devices   []preparedDevice `json:"devices"`
}

// preparedDevice is a device of this driver in the claim's allocation.
type preparedDevice struct {
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// Returned: the kubelet was told of it, and with ShareID also of the share.
	Returned bool       `json:"returned"`
	ShareID  *types.UID `json:"shareID,omitempty"`
	// CPUs is the list of CPUs that containers of the claim are to run on.
	CPUs string `json:"cpus,omitempty"`
}

func newDriver(s settings, client kubernetes.Interface) (*driver, error) {
	d := &driver{settings: s, client: client, book: book{}}
	if err := d.readPools(); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(s.book)
	if errors.Is(err, fs.ErrNotExist) {
		return d, d.write(d.book)
	}
	if err != nil {
		return nil, err
	}
	return d, json.Unmarshal(content, &d.book)
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(ctx, claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(claim.UID)
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *driver) HandleError(_ context.Context, err error, msg string) {
	log.Printf("%s: %v", msg, err)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d *driver) lastError() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// prepare returns the same devices each time that the kubelet asks.
func (d *driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if !d.knows(claim.UID) {
		if err := d.gate.pass(ctx); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, found := d.book[claim.UID]; found {
		return d.returned(claim.UID, known), nil
	}
	prepared := preparedClaim{Namespace: claim.Namespace, Name: claim.Name, Devices: []preparedDevice{}}
	taken := d.book.cpus()
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.settings.name {
			continue
		}
		device, err := d.choose(result, taken)
		if err != nil {
			return nil, fmt.Errorf("pool %s, device %s: %w", result.Pool, result.Device, err)
		}
		taken = taken.Union(device.cpus())
		prepared.Devices = append(prepared.Devices, device)
	}
	if err := d.writeCDI(claim.UID, prepared); err != nil {
		return nil, err
	}
	book := maps.Clone(d.book)
	book[claim.UID] = prepared
	if err := d.write(book); err != nil {
		return nil, err
	}
	return d.returned(claim.UID, prepared), nil
}

func (d *driver) knows(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, found := d.book[uid]
	return found
}

// choose returns a device of an allocation with CPUs that are not taken, if it has some.
func (d *driver) choose(result resourceapi.DeviceRequestAllocationResult, taken cpuset.CPUSet) (preparedDevice, error) {
	chosen := preparedDevice{Request: result.Request, Pool: result.Pool, Device: result.Device}
	pool, found := d.pools[result.Pool]
	if !found {
		return chosen, errors.New("there is no such pool")
	}
	at := slices.IndexFunc(pool.Devices, func(d resourceapi.Device) bool { return d.Name == result.Device })
	if at < 0 {
		return chosen, errors.New("there is no such device")
	}
	chosen.Returned = !pool.ReturnsNothing
	if pool.ReturnsShares {
		chosen.ShareID = result.ShareID
	}
	all, count := pool.CPUs[result.Device], int64(0)
	if id := pool.Devices[at].Attributes[cpuID].IntValue; id != nil {
		all, count = fmt.Sprint(*id), 1
	} else if all != "" {
		consumed, found := result.ConsumedCapacity[cpuCapacity]
		if !found {
			return chosen, fmt.Errorf("the claim consumes none of its capacity %s", cpuCapacity)
		}
		count = consumed.Value()
	}
	cpus, err := cpuset.Parse(all)
	if err != nil {
		return chosen, err
	}
	free := cpus.Difference(taken).List()
	if int64(len(free)) < count {
		return chosen, fmt.Errorf("%d of its CPUs %s are free, not %d", len(free), all, count)
	}
	chosen.CPUs = cpuset.New(free[:count]...).String()
	return chosen, nil
}

// unprepare succeeds for claims that are not prepared.
func (d *driver) unprepare(uid types.UID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.Remove(d.cdiFile(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	book := maps.Clone(d.book)
	delete(book, uid)
	return d.write(book)
}

// returned returns the devices that the kubelet is told of.
func (d *driver) returned(uid types.UID, claim preparedClaim) []kubeletplugin.Device {
	var devices []kubeletplugin.Device
	for _, device := range claim.Devices {
		if !device.Returned {
			continue
		}
		id := fmt.Sprintf("k8s.%s/claim=%s-%s", d.settings.name, uid, device.Device)
		if device.CPUs != "" {
			id = cpuKind + "=" + cpuDevice(uid)
		}
		devices = append(devices, kubeletplugin.Device{
			Requests:     []string{device.Request},
			PoolName:     device.Pool,
			DeviceName:   device.Device,
			ShareID:      device.ShareID,
			CDIDeviceIDs: []string{id},
		})
	}
	return devices
}

func (d preparedDevice) cpus() cpuset.CPUSet {
	// The driver wrote the list.
	cpus, _ := cpuset.Parse(d.CPUs)
	return cpus
}

func (c preparedClaim) cpus() cpuset.CPUSet {
	all := cpuset.New()
	for _, device := range c.Devices {
		all = all.Union(device.cpus())
	}
	return all
}

func (b book) cpus() cpuset.CPUSet {
	all := cpuset.New()
	for _, claim := range b {
		all = all.Union(claim.cpus())
	}
	return all
}

// write writes the book, which is the driver's from then on.
func (d *driver) write(book book) error {
	content, err := json.MarshalIndent(book, "", "  ")
	if err != nil {
		return err
	}
	if err := replace(d.settings.book, content); err != nil {
		return err
	}
	d.book = book
	return nil
}

// cpuKind is the CDI kind of dra.cpu.
const cpuKind = "dra.k8s.io/cpu"

func cpuDevice(uid types.UID) string { return "claim-" + string(uid) }

func (d *driver) cdiFile(uid types.UID) string {
	return filepath.Join(d.settings.cdiDir, "dra.k8s.io-cpu_"+cpuDevice(uid)+".json")
}

// writeCDI writes the file that tells a container runtime a claim's CPUs, as dra.cpu
// v0.2.0 does, if it has any.
func (d *driver) writeCDI(uid types.UID, claim preparedClaim) error {
	cpus := claim.cpus()
	if cpus.IsEmpty() {
		return nil
	}
	env := fmt.Sprintf("DRA_CPUSET_%s=%s", uid, cpus)
	spec := cdi.Spec{
		Version: cdi.CurrentVersion,
		Kind:    cpuKind,
		Devices: []cdi.Device{{Name: cpuDevice(uid), ContainerEdits: cdi.ContainerEdits{Env: []string{env}}}},
	}
	content, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return replace(d.cdiFile(uid), content)
}

// replace writes a file by renaming. Readers of CDI directories know files of this name as incomplete.
func replace(path string, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "spec.*.tmp")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// gate lets claims be prepared, or fail, or wait.
type gate struct {
	mu      sync.Mutex
	why     string
	holding chan struct{} // closed when claims no longer wait
}

func (g *gate) set(why string, holding chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holding != nil {
		close(g.holding)
	}
	g.why, g.holding = why, holding
}

func (g *gate) fail(why string) { g.set(why, nil) }
func (g *gate) hold()           { g.set("", make(chan struct{})) }
func (g *gate) allow()          { g.set("", nil) }

// pass returns when a claim may be prepared, or why not.
func (g *gate) pass(ctx context.Context) error {
	for {
		g.mu.Lock()
		why, holding := g.why, g.holding
		g.mu.Unlock()
		if why != "" {
			return errors.New(why)
		}
		if holding == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-holding:
		}
	}
}
