package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// cpuID is the attribute of dra.cpu's devices that are one CPU each, cpuCapacity the
// capacity of those from which CPUs are given out by count.
const (
	cpuID       = "dra.cpu/cpuID"
	cpuCapacity = "dra.cpu/cpu"
)

// pool is a pool as the file describes it. The file has a list of them.
type pool struct {
	Name string `json:"name"`
	// Devices and SharedCounters are the API's. The driver divides them into slices.
	Devices        []resourceapi.Device     `json:"devices"`
	SharedCounters []resourceapi.CounterSet `json:"sharedCounters"`
	// DevicesPerSlice is 0 for as many as the API server admits.
	DevicesPerSlice int `json:"devicesPerSlice"`
	// CPUs are, by the device's name, the CPUs of a device from which claims get some:
	// as many as the claim consumes of its capacity dra.cpu/cpu, the lowest that are
	// free. A device with the attribute dra.cpu/cpuID is that one CPU.
	CPUs map[string]string `json:"cpus"`
	// ReturnsNothing: the kubelet is told of no device of a prepared claim.
	ReturnsNothing bool `json:"returnsNothing"`
	// ReturnsShares: the kubelet is told the share's ID with the device.
	ReturnsShares bool `json:"returnsShares"`
}

// slices divides the pool into what is in one ResourceSlice each.
func (p *pool) slices() []resourceslice.Slice {
	var all []resourceslice.Slice
	if len(p.SharedCounters) > 0 {
		all = append(all, resourceslice.Slice{SharedCounters: p.SharedCounters})
	}
	for devices := range slices.Chunk(p.Devices, p.perSlice()) {
		all = append(all, resourceslice.Slice{Devices: devices})
	}
	if len(all) == 0 {
		all = append(all, resourceslice.Slice{})
	}
	return all
}

func (p *pool) perSlice() int {
	if p.DevicesPerSlice > 0 {
		return p.DevicesPerSlice
	}
	for _, device := range p.Devices {
		if len(device.Taints) > 0 || len(device.ConsumesCounters) > 0 || hasList(device) {
			return resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	return resourceapi.ResourceSliceMaxDevices
}

func hasList(device resourceapi.Device) bool {
	for _, value := range device.Attributes {
		if value.IntValues != nil || value.BoolValues != nil || value.StringValues != nil || value.VersionValues != nil {
			return true
		}
	}
	return false
}

// readPools reads the file.
func (d *driver) readPools() error {
	content, err := os.ReadFile(d.settings.pools)
	if err != nil {
		return err
	}
	var list []*pool
	if err := json.Unmarshal(content, &list); err != nil {
		return fmt.Errorf("%s: %w", d.settings.pools, err)
	}
	pools := map[string]*pool{}
	for _, one := range list {
		pools[one.Name] = one
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pools = pools
	return nil
}

// resources returns what is to be published.
func (d *driver) resources() resourceslice.DriverResources {
	d.mu.Lock()
	defer d.mu.Unlock()
	pools := map[string]resourceslice.Pool{}
	for name, pool := range d.pools {
		pools[name] = resourceslice.Pool{Slices: pool.slices()}
	}
	return resourceslice.DriverResources{Pools: pools}
}

// publish lets the helper write the slices.
func (d *driver) publish() error {
	return d.helper.PublishResources(context.Background(), d.resources())
}

// published fails unless the API server has exactly the slices of the pools.
func (d *driver) published(ctx context.Context) error {
	mine := fields.Set{
		resourceapi.ResourceSliceSelectorDriver:   d.settings.name,
		resourceapi.ResourceSliceSelectorNodeName: d.settings.node,
	}
	list, err := d.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: mine.String()})
	if err != nil {
		return err
	}
	found := map[string][]resourceapi.ResourceSlice{}
	for _, slice := range list.Items {
		name := slice.Spec.Pool.Name
		found[name] = append(found[name], slice)
	}
	pools := d.resources().Pools
	for name := range found {
		if _, wanted := pools[name]; !wanted {
			return fmt.Errorf("there are slices of the pool %s, which is gone", name)
		}
	}
	for name, pool := range pools {
		if !isPublished(found[name], pool.Slices) {
			return fmt.Errorf("the slices of the pool %s are not published; the last error: %v", name, d.lastError())
		}
	}
	return nil
}

// isPublished compares a pool's slices. The helper numbers them by their names.
func isPublished(found []resourceapi.ResourceSlice, wanted []resourceslice.Slice) bool {
	slices.SortFunc(found, func(a, b resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	same := func(a resourceapi.ResourceSlice, b resourceslice.Slice) bool {
		pool := a.Spec.Pool
		return pool.Generation == found[0].Spec.Pool.Generation && pool.ResourceSliceCount == int64(len(wanted)) &&
			resourceslice.DevicesDeepEqual(a.Spec.Devices, b.Devices) &&
			apiequality.Semantic.DeepEqual(a.Spec.SharedCounters, b.SharedCounters)
	}
	return slices.EqualFunc(found, wanted, same)
}
