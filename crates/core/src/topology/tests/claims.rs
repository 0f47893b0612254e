//! Claims beside what the kubelet allocates: two nodes of eight CPUs each, of which 0 and 8 are reserved, with the CPU
//! Manager's policy `none`, memory of 16 GiB, and a GPU and a NIC.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::claims::{
    self, Claim, ClaimFinding, ClaimInUse, ClaimPods, DeviceKey, Holding, Inventory, KEPT_FOR, NamedClaims,
    NodeClaims, Slice, claims_of, parse_cdi,
};
use crate::kubelet::ClaimedDevice;
use crate::machine::CpuLayout;
use crate::util::glob::{Pattern, PodPattern};

#[derive(Default)]
struct World {
    slices: Vec<Slice>,
    read: NodeClaims,
    case: Option<Case>,
}

fn machine() -> Machine {
    let node = |id: Id, cpus: &str| NumaNode { id, cpus: ids(cpus), memory: 16 * GIB, ..NumaNode::default() };
    Machine { nodes: vec![node(0, "0-3,8-11"), node(1, "4-7,12-15")], numa: true, ..Machine::default() }
}

fn case() -> Case {
    let config = KubeletConfig {
        cpu_manager_policy: "none".into(),
        memory_manager_policy: "None".into(),
        reserved_system_cpus: ids("0,8"),
        ..KubeletConfig::default()
    };
    Case { machine: machine(), config: Some(config), ..Case::default() }
}

/// Returns a slice of a pool that it is all of.
fn slice(driver: &str, devices: Value, counters: Value) -> Slice {
    let pool = json!({"name": "worker", "generation": 3, "resourceSliceCount": 1});
    let spec = json!({"driver": driver, "pool": pool, "devices": devices, "sharedCounters": counters});
    let object = json!({"metadata": {"name": driver}, "spec": spec});
    serde_json::from_value::<claims::SliceObject>(object).unwrap().into()
}

fn device(name: &str, attributes: Value) -> Value {
    json!({"name": name, "attributes": attributes})
}

/// Returns a slice with the devices that `dra.cpu` gives out by count.
fn grouped() -> Slice {
    let of_node = |name: &str, node: u64, cpus: u64| {
        json!({"name": name, "attributes": {"dra.cpu/numaNodeID": {"int": node}}, "allowMultipleAllocations": true,
            "capacity": {"dra.cpu/cpu": {"value": cpus.to_string()}}})
    };
    let socket = json!({"name": "cpudevsocket000", "attributes": {"dra.cpu/socketID": {"int": 0}},
        "allowMultipleAllocations": true, "capacity": {"dra.cpu/cpu": {"value": "14"}}});
    let machine = json!({"name": "cpudevmachine", "capacity": {"dra.cpu/cpu": {"value": "14"}}});
    let devices = json!([of_node("cpudevnuma000", 0, 6), of_node("cpudevnuma001", 1, 8), socket, machine]);
    slice("dra.cpu", devices, Value::Null)
}

fn result(driver: &str, device: &str) -> Value {
    json!({"request": "r", "driver": driver, "pool": "worker", "device": device})
}

fn cpus(device: &str, count: u64) -> Value {
    let mut result = result("dra.cpu", device);
    result["consumedCapacity"] = json!({"dra.cpu/cpu": count.to_string()});
    result
}

impl World {
    fn with(slices: Vec<Slice>) -> Self {
        Self { slices, ..Self::default() }
    }

    fn claim(self, name: &str, results: &[Value]) -> Self {
        self.configured(name, results, &json!([]))
    }

    fn configured(mut self, name: &str, results: &[Value], config: &Value) -> Self {
        let allocation = json!({"devices": {"results": results, "config": config}});
        let claim = json!({"metadata": {"uid": name}, "status": {"allocation": allocation}});
        let claim = Claim::from_json(claim.to_string().as_bytes()).unwrap();
        self.read.claims.insert(format!("ns/{name}"), ClaimInUse { claim, ..ClaimInUse::default() });
        self
    }

    /// Adds a CDI file as the driver writes it.
    fn cdi(mut self, kind: &str, uid: &str, variable: &str) -> Self {
        let edits = json!({"env": [variable]});
        let devices = json!([{"name": format!("claim-{uid}"), "containerEdits": edits}]);
        let file = json!({"cdiVersion": "0.8.0", "kind": kind, "devices": devices});
        parse_cdi(file.to_string().as_bytes(), &mut self.read.cdi).unwrap();
        self
    }

    fn used(&self) -> BTreeSet<DeviceKey> {
        let devices = self.read.claims.values().flat_map(|of| &of.claim.devices);
        devices.map(DeviceKey::from).collect()
    }

    fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::default();
        inventory.update(&self.slices, &self.used(), Duration::ZERO);
        inventory
    }

    fn topology(&self) -> Topology {
        self.topology_of(&self.inventory())
    }

    fn topology_of(&self, inventory: &Inventory) -> Topology {
        let mut case = self.case.clone().unwrap_or_else(case);
        case.claims = Some(NodeClaims { inventory: inventory.clone().into(), ..self.read.clone() });
        case.account()
    }

    /// Returns capacity, allocatable and available of both zones.
    fn of(&self, resource: &str) -> [[u64; 3]; 2] {
        amounts(&self.topology(), resource)
    }

    fn findings(&self) -> Vec<String> {
        self.topology().findings.iter().map(ToString::to_string).collect()
    }
}

fn amounts(topology: &Topology, resource: &str) -> [[u64; 3]; 2] {
    let of = |zone: &Zone| {
        zone.resources.get(resource).map_or([u64::MAX; 3], |a| [a.capacity, a.allocatable, a.available])
    };
    [of(&topology.zones[0]), of(&topology.zones[1])]
}

const CPU_KIND: &str = "dra.k8s.io/cpu";

#[test]
fn without_claims_all_is_available() {
    let world = World::with(vec![grouped()]);
    assert_eq!(world.of("cpu"), [[8, 6, 6], [8, 8, 8]]);
    assert!(!world.topology().zones[0].resources.contains_key("dra.cpu"), "CPUs are not devices as well");
}

#[test]
fn cpus_by_count_are_taken_by_id_if_known_else_by_amount() {
    let world = || World::with(vec![grouped()]).claim("a", &[cpus("cpudevnuma001", 4)]);
    assert_eq!(world().of("cpu"), [[8, 6, 6], [8, 8, 4]]);
    assert!(world().findings().is_empty(), "the node is known");
    let known = world().cdi(CPU_KIND, "a", "DRA_CPUSET_a=4-7");
    assert_eq!(known.of("cpu"), [[8, 6, 6], [8, 8, 4]]);
    assert!(known.findings().is_empty(), "{:?}", known.findings());
    // The ids are what counts, whatever the node of the device.
    assert_eq!(world().cdi(CPU_KIND, "a", "DRA_CPUSET_a=2-5").of("cpu"), [[8, 6, 4], [8, 8, 6]]);
    // A file of another claim.
    assert_eq!(world().cdi(CPU_KIND, "b", "DRA_CPUSET_a=1-3").of("cpu"), [[8, 6, 6], [8, 8, 4]]);
    for of_another_allocation in ["DRA_CPUSET_a=", "DRA_CPUSET_a=1-3", "DRA_CPUSET_b=0-3", "OTHER=0-3"] {
        assert_eq!(world().cdi(CPU_KIND, "a", of_another_allocation).of("cpu"), [[8, 6, 6], [8, 8, 4]]);
    }
}

#[test]
fn the_capacity_of_cpus_has_two_names() {
    let of = |capacity: Value, consumed: Value| {
        let mut device = device("d", json!({"dra.cpu/numaNodeID": {"int": 1}}));
        device["capacity"] = capacity;
        let mut result = result("dra.cpu", "d");
        result["consumedCapacity"] = consumed;
        let world = World::with(vec![slice("dra.cpu", json!([device]), Value::Null)]);
        world.claim("a", &[result]).of("cpu")[1][2]
    };
    let capacity = |name: &str| json!({name: {"value": "6"}});
    assert_eq!(of(capacity("dra.cpu/cpu"), json!({"dra.cpu/cpu": "2"})), 6);
    assert_eq!(of(capacity("cpu"), json!({"cpu": "2"})), 6);
    assert_eq!(of(capacity("cpu"), json!({})), 2, "all of it");
    assert_eq!(of(json!({}), json!({})), 7, "one CPU");
    // After its device has gone, the claim tells how many.
    let gone = |consumed: Value| {
        let mut result = result("dra.cpu", "d");
        result["consumedCapacity"] = consumed;
        World::default().claim("a", &[result]).of("cpu")
    };
    assert_eq!(gone(json!({"dra.cpu/cpu": "2"})), [[8, 6, 4], [8, 8, 6]]);
    assert_eq!(gone(json!({"cpu": "2"})), [[8, 6, 4], [8, 8, 6]]);
    assert_eq!(gone(json!({})), [[8, 6, 5], [8, 8, 7]]);
}

#[test]
fn a_recording_has_files_of_drivers_only_if_there_are_any() {
    let of = |world: World| {
        let json = serde_json::to_value(&world.read).unwrap();
        let read: NodeClaims = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(read, world.read);
        json.get("cdi").is_some()
    };
    assert!(!of(World::default()));
    assert!(of(World::default().cdi(CPU_KIND, "a", "DRA_CPUSET_a=4-7")));
    assert!(of(World::default().cdi("dra.k8s.io/memory", "a", "DRAMEMORY_a_memory=numanode:1,size:4Gi")));
}

#[test]
fn cpus_one_by_one_are_taken_by_their_attribute() {
    let cpu = |name: &str, cpu: u64| device(name, json!({"dra.cpu/cpuID": {"int": cpu}}));
    let slice = slice("dra.cpu", json!([cpu("cpudev000", 1), cpu("cpudev001", 9)]), Value::Null);
    let world = World::with(vec![slice])
        .claim("a", &[result("dra.cpu", "cpudev000"), result("dra.cpu", "cpudev001")]);
    assert_eq!(world.of("cpu"), [[8, 6, 4], [8, 8, 8]]);
}

#[test]
fn claims_on_one_device_add_up() {
    let two = [cpus("cpudevnuma001", 2)];
    let world = World::with(vec![grouped()]).claim("a", &two).claim("b", &two);
    assert_eq!(world.of("cpu"), [[8, 6, 6], [8, 8, 4]]);
}

#[test]
fn cpus_of_a_socket_may_be_on_any_of_its_nodes() {
    let world = || World::with(vec![grouped()]).claim("a", &[cpus("cpudevsocket000", 4)]);
    assert_eq!(world().of("cpu"), [[8, 6, 2], [8, 8, 4]]);
    assert_eq!(world().findings().len(), 1);
    let known = world().cdi(CPU_KIND, "a", "DRA_CPUSET_a=2-5");
    assert_eq!(known.of("cpu"), [[8, 6, 4], [8, 8, 6]]);
    assert!(known.findings().is_empty());
    // A node may be on several sockets.
    let on = |sockets: [&[Id]; 2]| {
        let layout = |of: &[Id]| CpuLayout { sockets: of.iter().copied().collect(), ..CpuLayout::default() };
        let mut case = case();
        case.machine.layout = [(0, layout(sockets[0])), (1, layout(sockets[1]))].into();
        World { case: Some(case), ..world() }.of("cpu")
    };
    assert_eq!(on([&[0], &[1]]), [[8, 6, 2], [8, 8, 8]]);
    assert_eq!(on([&[1], &[1, 0]]), [[8, 6, 6], [8, 8, 4]]);
    assert_eq!(on([&[1], &[2]]), [[8, 6, 2], [8, 8, 4]], "the socket is not known");
}

#[test]
fn cpus_of_the_machine_are_in_the_claim() {
    let of = |device: &str, source: &str, driver: &str, parameters: Value| {
        let opaque = json!({"driver": driver, "parameters": parameters});
        let config = json!([{"source": source, "requests": ["r"], "opaque": opaque}]);
        World::with(vec![grouped()]).configured("a", &[cpus(device, 4)], &config).of("cpu")
    };
    let asks = |cpus: &str| json!({"cpuConfig": {"cpuset": cpus}});
    let (known, unknown) = ([[8, 6, 4], [8, 8, 6]], [[8, 6, 2], [8, 8, 4]]);
    assert_eq!(of("cpudevmachine", "FromClaim", "dra.cpu", asks("2-5")), known);
    assert_eq!(of("cpudevmachine", "FromClass", "dra.cpu", asks("2-5")), unknown);
    assert_eq!(of("cpudevmachine", "FromClaim", "other", asks("2-5")), unknown);
    // The driver refuses these claims, or ignores what they ask for.
    for cpus in ["", "2", "2-6", "x"] {
        assert_eq!(of("cpudevmachine", "FromClaim", "dra.cpu", asks(cpus)), unknown, "{cpus}");
    }
    assert_eq!(of("cpudevsocket000", "FromClaim", "dra.cpu", asks("2-5")), unknown);
    for (requests, expected) in [(json!(null), known), (json!([]), known), (json!(["other"]), unknown)] {
        let opaque = json!({"driver": "dra.cpu", "parameters": asks("2-5")});
        let config = json!([{"source": "FromClaim", "requests": requests, "opaque": opaque}]);
        let world = World::with(vec![grouped()]).configured("a", &[cpus("cpudevmachine", 4)], &config);
        assert_eq!(world.of("cpu"), expected, "{requests}");
    }
    assert_eq!(of("cpudevnuma001", "FromClaim", "dra.cpu", asks("2-5")), [[8, 6, 6], [8, 8, 4]]);
}

#[test]
fn parameters_of_other_drivers_are_not_parsed() {
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    for (driver, parameters) in [(GPU, deep.as_str()), ("dra.cpu", deep.as_str()), (GPU, r#""\ud800""#)] {
        let result = r#"{"request":"r","driver":"gpu.example.com","pool":"worker","device":"gpu-0"}"#;
        let config = format!(
            r#"[{{"source":"FromClaim","opaque":{{"driver":"{driver}","parameters":{parameters}}}}}]"#
        );
        let json = format!(
            r#"{{"status":{{"allocation":{{"devices":{{"results":[{result}],"config":{config}}}}}}}}}"#
        );
        let claim = Claim::from_json(json.as_bytes()).unwrap();
        assert_eq!((claim.devices.len(), claim.cpus.len()), (1, 0));
    }
}

#[test]
fn cpus_that_the_kubelet_gave_out_too_count_once() {
    let config = KubeletConfig { cpu_manager_policy: "static".into(), ..case().config.unwrap() };
    let case = Case {
        allocatable: Allocatable { cpus: ids("1-7,9-15"), ..Allocatable::default() },
        usage: Usage { pods: vec![pod("a", container("main", "4-5", vec![]))] },
        config: Some(config),
        ..case()
    };
    let world = World { case: Some(case), ..World::with(vec![grouped()]) };
    let world = world.claim("a", &[cpus("cpudevnuma001", 4)]).cdi(CPU_KIND, "a", "DRA_CPUSET_a=4-7");
    assert_eq!(world.of("cpu"), [[8, 6, 6], [8, 8, 4]]);
    assert!(world.findings()[0].contains("both gave out the CPUs 4-5"), "{:?}", world.findings());
}

#[test]
fn a_reserved_cpu_is_not_taken_from_what_is_available() {
    let world = World::with(vec![grouped()]).claim("a", &[cpus("cpudevnuma000", 2)]);
    assert_eq!(world.cdi(CPU_KIND, "a", "DRA_CPUSET_a=0-1").of("cpu"), [[8, 6, 5], [8, 8, 8]]);
}

#[test]
fn memory_leaves_its_node() {
    let of = |name: &str, node: u64, size: &str| {
        json!({"name": name, "allowMultipleAllocations": true, "capacity": {"size": {"value": "16Gi"}},
            "attributes": {"resource.kubernetes.io/numaNode": {"int": node},
                "resource.kubernetes.io/pageSize": {"string": size}}})
    };
    let slice =
        slice("dra.memory", json!([of("memory-x", 0, "4k"), of("hugepages-2m-y", 1, "2m")]), Value::Null);
    let result = |device: &str, size: &str| {
        let mut result = result("dra.memory", device);
        result["consumedCapacity"] = json!({"size": size});
        result
    };
    let mut case = case();
    case.machine.nodes[1].hugepages = [(2 * MIB, 1024)].into();
    let world = World { case: Some(case), ..World::with(vec![slice]) };
    let world = world.claim("a", &[result("memory-x", "4Gi"), result("hugepages-2m-y", "1Gi")]);
    assert_eq!(world.of("memory"), [[16 * GIB, 16 * GIB, 12 * GIB], [16 * GIB, 14 * GIB, 14 * GIB]]);
    assert_eq!(world.of("hugepages-2Mi"), [[0, 0, 0], [2 * GIB, 2 * GIB, GIB]]);
    // After a restart of the driver its devices have other names.
    let gone = World::default().claim("a", &[result("memory-z", "4Gi")]);
    assert_eq!(gone.of("memory"), [[16 * GIB; 3]; 2]);
    assert_eq!(gone.findings().len(), 1);
    let told = gone.cdi("dra.k8s.io/memory", "a", "DRAMEMORY_a_memory=numanode:1,size:4Gi");
    assert_eq!(told.of("memory"), [[16 * GIB; 3], [16 * GIB, 16 * GIB, 12 * GIB]]);
    let mut qualified = json!([of("memory-x", 0, "4k")]);
    qualified[0]["capacity"] = json!({"dra.memory/size": {"value": "16Gi"}});
    let mut part = result("memory-x", "0");
    part["consumedCapacity"] = json!({"dra.memory/size": "4Gi"});
    let world = World::with(vec![self::slice("dra.memory", qualified, Value::Null)]).claim("a", &[part]);
    assert_eq!(world.of("memory")[0], [16 * GIB, 16 * GIB, 12 * GIB]);
}

#[test]
fn what_memory_a_device_was_that_is_gone_is_in_the_file_of_its_driver() {
    let mut case = case();
    case.machine.nodes[1].hugepages = [(2 * MIB, 1024)].into();
    let mut world = World { case: Some(case), ..World::default() };
    let mut result = result("dra.memory", "hugepages-2m-z");
    result["consumedCapacity"] = json!({"size": "1Gi"});
    world = world.claim("a", &[result]);
    assert_eq!((world.of("hugepages-2Mi"), world.findings().len()), ([[0; 3], [2 * GIB; 3]], 1));
    let told = world.cdi("dra.k8s.io/memory", "a", "DRAMEMORY_a_hugepages_2m=numanode:1,size:1Gi");
    assert_eq!(told.of("hugepages-2Mi"), [[0; 3], [2 * GIB, 2 * GIB, GIB]]);
    assert_eq!(told.of("memory")[0], [16 * GIB; 3]);
    assert!(told.findings().is_empty(), "{:?}", told.findings());
}

#[test]
fn the_driver_writes_the_size_of_huge_pages_with_its_unit() {
    for (size, bytes) in [("64k", 64 << 10), ("2m", 2 << 20), ("1g", 1 << 30)] {
        let mut case = case();
        case.machine.nodes[1].hugepages = [(bytes, (2 << 30) / bytes)].into();
        let world =
            World { case: Some(case), ..World::default() }.claim("a", &[result("dra.memory", "gone")]);
        let world =
            world.cdi("dra.k8s.io/memory", "a", &format!("DRAMEMORY_a_hugepages_{size}=numanode:1,size:1Gi"));
        let name = crate::quantity::hugepages_name(bytes);
        assert_eq!(world.of(&name)[1], [2 * GIB, 2 * GIB, GIB], "{name}");
    }
}

#[test]
fn of_two_devices_of_one_kind_the_driver_wrote_only_the_last() {
    let size = |device: &str, size: &str| {
        let mut result = result("dra.memory", device);
        result["consumedCapacity"] = json!({"size": size});
        result
    };
    let world = |sizes: [&str; 2]| {
        let world = World::default().claim("a", &[size("memory-x", sizes[0]), size("memory-y", sizes[1])]);
        let world = world.cdi("dra.k8s.io/memory", "a", "DRAMEMORY_a_memory=numanode:1,size:4Gi");
        (world.of("memory")[1][2], world.findings().len())
    };
    assert_eq!(world(["6Gi", "4Gi"]), (12 * GIB, 1));
    assert_eq!(world(["1Gi", "3Gi"]), (12 * GIB, 0));
}

#[test]
fn huge_pages_are_told_by_their_attribute_or_size() {
    let of = |size: &str, huge: Value| {
        let mut device = device("m", json!({"numaNode": {"int": 1}, "pageSize": {"string": size}}));
        device["attributes"]["resource.kubernetes.io/hugeTLB"] = huge;
        device["attributes"]["resource.kubernetes.io/pageSize"] = json!({"string": size});
        device["capacity"] = json!({"size": {"value": "1Gi"}});
        let mut case = case();
        case.machine.nodes[1].hugepages = [(64 << 10, 1 << 15), (2 * MIB, 1024), (GIB, 2)].into();
        let world = World {
            case: Some(case),
            ..World::with(vec![slice("dra.memory", json!([device]), Value::Null)])
        };
        let world = world.claim("a", &[result("dra.memory", "m")]);
        ["memory", "hugepages-64Ki", "hugepages-2Mi", "hugepages-1Gi"].map(|kind| {
            let [_, [_, allocatable, available]] = world.of(kind);
            allocatable - available
        })
    };
    assert_eq!(of("64k", json!({"bool": true})), [0, GIB, 0, 0]);
    assert_eq!(of("64k", json!({"bool": false})), [GIB, 0, 0, 0]);
    assert_eq!(of("64k", json!({})), [GIB, 0, 0, 0]);
    assert_eq!(of("2m", json!({"bool": true})), [0, 0, GIB, 0]);
    assert_eq!(of("2m", json!({})), [0, 0, GIB, 0]);
    assert_eq!(of("1g", json!({})), [0, 0, 0, GIB]);
}

const GPU: &str = "gpu.example.com";

fn gpu(numa: Value) -> Value {
    device("gpu-0", json!({"resource.kubernetes.io/numaNode": numa}))
}

#[test]
fn a_gpu_is_on_the_first_node_of_its_list() {
    let world = World::with(vec![slice(GPU, json!([gpu(json!({"ints": [1, 0]}))]), Value::Null)]);
    assert_eq!(world.of(GPU), [[0, 0, 0], [1, 1, 1]]);
    let world = world.claim("a", &[result(GPU, "gpu-0")]);
    assert_eq!(world.of(GPU), [[0, 0, 0], [1, 1, 0]]);
}

#[test]
fn administrators_take_nothing_and_taints_keep_pods_away() {
    let slice = |taint: &str| {
        let mut gpu = gpu(json!({"int": 1}));
        gpu["taints"] = json!([{"key": "k", "effect": taint}]);
        slice(GPU, json!([gpu]), Value::Null)
    };
    let mut admin = result(GPU, "gpu-0");
    admin["adminAccess"] = json!(true);
    assert_eq!(World::with(vec![slice("None")]).claim("a", &[admin]).of(GPU), [[0, 0, 0], [1, 1, 1]]);
    for effect in ["NoSchedule", "NoExecute"] {
        assert_eq!(World::with(vec![slice(effect)]).of(GPU), [[0, 0, 0], [1, 0, 0]]);
    }
}

#[test]
fn a_device_in_parts_counts_once() {
    let part = |name: &str, memory: u64| {
        let counters =
            json!([{"counterSet": "gpu-0", "counters": {"memory": {"value": memory.to_string()}}}]);
        json!({"name": name, "consumesCounters": counters, "attributes": {"resource.kubernetes.io/numaNode": {"int": 1}}})
    };
    let parts = (0..7).map(|number| part(&format!("mig-{number}"), 10));
    let devices: Vec<Value> = parts.chain([part("gpu-0", 80)]).collect();
    let counters = json!([{"name": "gpu-0", "counters": {"memory": {"value": "80"}}}]);
    let world = World::with(vec![slice(GPU, json!(devices), counters)]);
    assert_eq!(world.of(GPU), [[0, 0, 0], [1, 1, 1]]);
    assert_eq!(world.claim("a", &[result(GPU, "mig-3")]).of(GPU), [[0, 0, 0], [1, 1, 0]]);
}

#[test]
fn parts_without_a_whole_are_in_no_zone() {
    let part = |name: &str| {
        let counters = json!([{"counterSet": "card", "counters": {"slices": {"value": "2"}}}]);
        json!({"name": name, "consumesCounters": counters, "attributes": {"numa": {"int": 1}}})
    };
    let counters = json!([{"name": "card", "counters": {"slices": {"value": "8"}}}]);
    let world = World::with(vec![slice(GPU, json!([part("a"), part("b")]), counters)]);
    let topology = world.claim("c", &[result(GPU, "a")]).topology();
    assert!(!topology.zones[0].resources.contains_key(GPU));
    assert_eq!(topology.unplaced_devices, [(GPU.to_owned(), 2)].into());
}

#[test]
fn a_part_of_two_sets_that_left_its_pool_is_one_device() {
    let part = |name: &str, slices: u64| {
        let of = |set: &str, amount: u64| json!({"counterSet": set, "counters": {"slices": {"value": amount.to_string()}}});
        let counters = json!([of("a-band", 1), of("card", slices)]);
        json!({"name": name, "consumesCounters": counters, "attributes": {"numa": {"int": 1}}})
    };
    let set = |name: &str| json!({"name": name, "counters": {"slices": {"value": "8"}}});
    let of = |devices: Value| slice(GPU, devices, json!([set("a-band"), set("card")]));
    let world =
        World::with(vec![of(json!([part("whole", 8), part("a", 2)]))]).claim("c", &[result(GPU, "a")]);
    assert_eq!(world.of(GPU), [[0, 0, 0], [1, 1, 0]]);
    let mut inventory = world.inventory();
    let mut after = |devices: Value| {
        inventory.update(&[of(devices)], &world.used(), Duration::ZERO);
        amounts(&world.topology_of(&inventory), GPU)
    };
    assert_eq!(after(json!([part("whole", 8)])), [[0, 0, 0], [1, 1, 0]]);
    assert_eq!(after(json!([])), [[0, 0, 0], [1, 0, 0]]);
}

#[test]
fn parts_that_left_their_pool_are_one_device() {
    let part = |name: &str, slices: u64| {
        let counters = json!([{"counterSet": "card", "counters": {"slices": {"value": slices.to_string()}}}]);
        json!({"name": name, "consumesCounters": counters, "attributes": {"numa": {"int": 1}}})
    };
    let counters = json!([{"name": "card", "counters": {"slices": {"value": "8"}}}]);
    let of = |devices: Value| slice(GPU, devices, counters.clone());
    let world = World::with(vec![of(json!([part("whole", 8), part("a", 2), part("b", 1)]))]);
    let world = world.claim("c", &[result(GPU, "a"), result(GPU, "b")]);
    let mut inventory = world.inventory();
    inventory.update(&[of(json!([part("whole", 8)]))], &world.used(), Duration::ZERO);
    assert_eq!(amounts(&world.topology_of(&inventory), GPU), [[0, 0, 0], [1, 1, 0]]);
    inventory.update(&[], &world.used(), Duration::ZERO);
    inventory.update(&[], &world.used(), KEPT_FOR);
    assert_eq!(amounts(&world.topology_of(&inventory), GPU), [[0, 0, 0], [1, 0, 0]]);
}

#[test]
fn a_claim_counts_though_the_list_shows_no_device() {
    let nic = device("eth1", json!({"dra.net/numaNode": {"int": 1}}));
    let world = World::with(vec![slice("dra.net", json!([nic]), Value::Null)]);
    assert_eq!(world.claim("a", &[result("dra.net", "eth1")]).of("dra.net"), [[0, 0, 0], [1, 1, 0]]);
}

#[test]
fn an_incomplete_pool_counts_as_before_for_a_while() {
    let complete = slice(GPU, json!([gpu(json!({"int": 1}))]), Value::Null);
    let next = Slice { generation: 7, slices: 2, devices: Vec::new(), ..complete.clone() };
    let twice =
        Slice { devices: [&complete.devices[..], &complete.devices[..]].concat(), ..complete.clone() };
    for slices in [vec![], vec![next.clone()], vec![complete.clone(), next], vec![twice]] {
        let mut world = World::with(vec![complete.clone()]);
        let mut inventory = world.inventory();
        let mut at = |world: &World, seconds: u64| {
            inventory.update(&slices, &world.used(), Duration::from_secs(seconds));
            (amounts(&world.topology_of(&inventory), GPU), inventory.next_loss())
        };
        let loss = Some(Duration::from_secs(1) + KEPT_FOR);
        assert_eq!(at(&world, 1), ([[0, 0, 0], [1, 1, 1]], loss));
        assert_eq!(at(&world, 120), ([[0, 0, 0], [1, 1, 1]], loss));
        world = world.claim("a", &[result(GPU, "gpu-0")]);
        assert_eq!(at(&world, 121), ([[0, 0, 0], [1, 0, 0]], None), "what is in use is still there");
        world.read.claims.clear();
        let gone = at(&world, 122).0;
        assert_eq!(gone, [[u64::MAX; 3]; 2], "no zone lists it");
    }
}

#[test]
fn a_device_that_left_its_pool_stays_while_it_is_in_use() {
    let before = slice(GPU, json!([gpu(json!({"int": 1}))]), Value::Null);
    let world = World::with(vec![before.clone()]).claim("a", &[result(GPU, "gpu-0")]);
    let mut inventory = world.inventory();
    let after = slice(GPU, json!([device("gpu-1", json!({"numaNode": {"int": 0}}))]), Value::Null);
    inventory.update(std::slice::from_ref(&after), &world.used(), Duration::from_secs(1));
    assert_eq!(amounts(&world.topology_of(&inventory), GPU), [[1, 1, 1], [1, 0, 0]]);
    inventory.update(std::slice::from_ref(&before), &world.used(), Duration::from_secs(2));
    assert_eq!(inventory.devices().count(), 1, "it is back, and gpu-1 is not in use");
    inventory.update(&[after], &BTreeSet::new(), Duration::from_secs(3));
    let free = World::default();
    assert_eq!(amounts(&free.topology_of(&inventory), GPU), [[1, 1, 1], [0, 0, 0]]);
    assert_eq!(inventory.devices().count(), 1, "the other one is forgotten");
}

#[test]
fn a_claim_counts_once_for_all_its_pods_and_containers() {
    let claimed = |device: &str| ClaimedDevice {
        claim: "ns/a".into(),
        driver: GPU.into(),
        pool: "worker".into(),
        device: device.into(),
        share: None,
    };
    let shared = ClaimedDevice { share: Some("s".into()), ..claimed("gpu-0") };
    let container = ContainerUsage {
        claims: vec!["ns/a".into(), "ns/empty".into()],
        claimed: vec![claimed("gpu-0"), claimed("gpu-0"), shared],
        ..ContainerUsage::default()
    };
    let usage = Usage { pods: ["a", "b", "c"].map(|name| pod(name, container.clone())).into() };
    let listed = claims_of(&usage.pods);
    let counts: Vec<(&str, usize, usize)> =
        listed.iter().map(|(name, of)| (name.as_str(), of.claim.devices.len(), of.pods.len())).collect();
    assert_eq!(counts, [("ns/a", 2, 3), ("ns/empty", 0, 3)]);
    let device = claims::Allocated {
        driver: GPU.into(),
        pool: "worker".into(),
        device: "gpu-0".into(),
        ..claims::Allocated::default()
    };
    let shared = claims::Allocated { share: Some("s".into()), ..device.clone() };
    assert_eq!(listed["ns/a"].claim.devices, [device, shared]);
    assert_eq!(listed.values().map(|of| of.is_known).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn the_node_of_a_device_is_what_its_driver_or_else_the_kernel_says() {
    let world = |driver: &str, attributes: Value| {
        let world = World::with(vec![slice(driver, json!([device("d", attributes)]), Value::Null)]);
        let pci = [("0000:8a:00.0".to_owned(), Some(1)), ("0000:01:00.0".to_owned(), None)];
        let pci = Arc::new(pci.into());
        World { read: NodeClaims { pci, ..world.read }, ..world }
    };
    let node = |driver: &str, attributes: Value| {
        let topology = world(driver, attributes).topology();
        topology
            .zones
            .iter()
            .find(|zone| zone.resources.get(driver).is_some_and(|of| of.capacity == 1))
            .map(|zone| zone.id)
    };
    let pci = json!({"string": "0000:8a:00.0"});
    assert_eq!(node(GPU, json!({"numa": {"int": 1}})), Some(1), "a name of the driver's own");
    assert_eq!(node(GPU, json!({"gpu.example.com/numaNode": {"int": 1}})), Some(1));
    assert_eq!(node("other.example.com", json!({"gpu.example.com/numaNode": {"int": 1}})), None);
    assert_eq!(node(GPU, json!({"resource.kubernetes.io/pciBusID": pci})), Some(1));
    assert_eq!(
        node(GPU, json!({"dra.net/numaNode": {"int": -1}, "pciAddress": pci})),
        Some(1),
        "-1 is unknown"
    );
    assert_eq!(node(GPU, json!({"pciAddress": {"string": "0000:01:00.0"}})), None);
    assert_eq!(node(GPU, json!({})), None);
    let wrong = world(GPU, json!({"numa": {"int": 0}, "pciAddress": pci}));
    assert!(wrong.findings()[0].contains("its PCI device is on node 1"), "{:?}", wrong.findings());
    let missing = world(GPU, json!({"numa": {"int": 7}}));
    let expected = ClaimFinding::NoSuchNode { driver: GPU.into(), device: "d".into(), node: 7 };
    assert_eq!(missing.topology().findings, [Finding::Claims(expected)].into());
    assert_eq!(missing.topology().unplaced_devices, [(GPU.to_owned(), 1)].into());
    assert_eq!(wrong.topology().unplaced_devices, [(GPU.to_owned(), 0)].into());
    let mut absent = world(GPU, json!({"numa": {"int": 1}, "pciAddress": {"string": "0000:99:00.0"}}));
    assert!(absent.findings().is_empty(), "it was not read");
    absent.read.absent_pci = Arc::new(["0000:99:00.0".to_owned()].into());
    let expected = "the driver gpu.example.com publishes the PCI address 0000:99:00.0 for d, at which this machine has \
                    no device";
    assert_eq!(absent.findings(), [expected]);
}

#[test]
fn a_driver_has_one_finding_of_each_kind() {
    let devices = |driver: &str| {
        let gone = |name: &str| device(name, json!({"numa": {"int": 7}}));
        let wrong =
            |name: &str| device(name, json!({"numa": {"int": 0}, "pciAddr": {"string": "0000:8a:00.0"}}));
        slice(driver, json!([gone("a"), gone("b"), wrong("c"), wrong("d")]), Value::Null)
    };
    let mut world = World::with(vec![devices(GPU), devices("nic.example.com")]);
    world.read.pci = Arc::new([("0000:8a:00.0".to_owned(), Some(1))].into());
    let of = |driver: &str| {
        let driver = driver.to_owned();
        let gone = ClaimFinding::NoSuchNode { driver: driver.clone(), device: "a".into(), node: 7 };
        let wrong = ClaimFinding::OtherNode { driver, device: "c".into(), published: 0, actual: 1 };
        [Finding::Claims(gone), Finding::Claims(wrong)]
    };
    let expected: BTreeSet<Finding> = of(GPU).into_iter().chain(of("nic.example.com")).collect();
    assert_eq!(world.topology().findings, expected);
}

#[test]
fn zones_have_the_devices_of_a_limited_number_of_drivers() {
    let driver = |number: u32| format!("d{number:02}.example.com");
    let of = |number| slice(&driver(number), json!([device("d", json!({"numa": {"int": 1}}))]), Value::Null);
    let topology = World::with((0..65).map(of).collect()).topology();
    let is_shown = |number| topology.zones[0].resources.contains_key(&driver(number));
    let shown: Vec<u32> = (0..65).filter(|number| is_shown(*number)).collect();
    assert_eq!(shown, (0..64).collect::<Vec<_>>());
    let unplaced = (0..65).map(|number| (driver(number), u64::from(number == 64)));
    assert_eq!(topology.unplaced_devices, unplaced.collect());
}

#[test]
fn the_cpu_manager_beside_the_driver_is_a_finding() {
    let config = KubeletConfig { cpu_manager_policy: "static".into(), ..case().config.unwrap() };
    let allocatable = Allocatable { cpus: ids("1-7,9-15"), ..Allocatable::default() };
    let with = |slices| {
        let (config, allocatable) = (Some(config.clone()), allocatable.clone());
        World { case: Some(Case { config, allocatable, ..case() }), ..World::with(slices) }.findings()
    };
    assert_eq!(with(vec![grouped()]).len(), 1);
    assert!(with(vec![slice(GPU, json!([gpu(json!({"int": 1}))]), Value::Null)]).is_empty());
    assert!(World::with(vec![grouped()]).findings().is_empty());
}

#[test]
fn the_position_that_the_memory_driver_publishes_is_not_an_id() {
    let node = |id: Id| NumaNode { id, memory: GIB, ..NumaNode::default() };
    let machine = Machine { nodes: [0, 2, 10].map(node).into(), numa: true, ..Machine::default() };
    let attributes = json!({"resource.kubernetes.io/numaNode": {"int": 1}});
    let mut device = device("m", attributes);
    device["capacity"] = json!({"size": {"value": "1Gi"}});
    let world = World::with(vec![slice("dra.memory", json!([device]), Value::Null)]);
    let world = World { case: Some(Case { machine, ..case() }), ..world };
    let topology = world.claim("a", &[result("dra.memory", "m")]).topology();
    let free: Vec<(Id, u64)> = topology
        .zones
        .iter()
        .filter(|zone| zone.resources["memory"].capacity > 0)
        .map(|zone| (zone.id, zone.resources["memory"].available))
        .collect();
    assert_eq!(free, [(0, GIB), (2, GIB), (10, 0)], "node10 comes before node2");
}

#[test]
fn any_device_may_stand_for_cpus_and_memory() {
    let mapping = json!({
        "cpu": {"mapping": {"deviceMultiplier": "2"}},
        "memory": {"mapping": {"capacityKey": "size", "capacityMultiplier": "1Gi"}},
        "ephemeral-storage": {"mapping": {"deviceMultiplier": "1"}},
    });
    let mut device = device("d", json!({"resource.kubernetes.io/numaNode": {"int": 1}}));
    device["nodeAllocatableResources"] = mapping;
    device["capacity"] = json!({"size": {"value": "8"}});
    let world = World::with(vec![slice("node.example.com", json!([device]), Value::Null)]);
    let mut part = result("node.example.com", "d");
    let whole = World::with(world.slices.clone()).claim("a", &[part.clone()]);
    assert_eq!((whole.of("cpu"), whole.of("memory")[1][2]), ([[8, 6, 6], [8, 8, 6]], 8 * GIB));
    part["consumedCapacity"] = json!({"size": "3"});
    assert_eq!(world.claim("a", &[part]).of("memory")[1][2], 13 * GIB);
}

#[test]
fn kubernetes_1_36_has_another_form_of_these_devices() {
    let of = |mappings: Value| {
        let mut device = device("d", json!({"resource.kubernetes.io/numaNode": {"int": 1}}));
        device["nodeAllocatableResourceMappings"] = mappings;
        device["capacity"] = json!({"size": {"value": "8"}});
        let world = World::with(vec![slice("node.example.com", json!([device]), Value::Null)]);
        let mut result = result("node.example.com", "d");
        result["consumedCapacity"] = json!({"size": "3"});
        let world = world.claim("a", &[result]);
        (world.of("cpu")[1][2], world.of("memory")[1][2] / GIB)
    };
    let memory = json!({"capacityKey": "size", "allocationMultiplier": "1Gi"});
    assert_eq!(of(json!({"cpu": {"allocationMultiplier": "2"}, "memory": memory})), (6, 13));
    assert_eq!(of(json!({"cpu": {}, "memory": {"allocationMultiplier": "2Gi"}})), (7, 14));
    assert_eq!(of(json!({"cpu": {"capacityKey": "size"}})), (5, 16));
    assert_eq!(of(json!({"ephemeral-storage": {}})), (8, 16));
}

#[test]
fn a_slice_of_the_first_beta_is_read() {
    let basic = json!({"attributes": {"numa": {"int": 1}}, "capacity": {"memory": {"value": "80Gi"}}});
    let world = World::with(vec![slice(GPU, json!([{"name": "gpu-0", "basic": basic}]), Value::Null)]);
    assert_eq!(world.of(GPU), [[0, 0, 0], [1, 1, 1]]);
}

#[test]
fn a_driver_cannot_take_the_name_of_another_resource() {
    for name in ["cpu", "memory", "hugepages-2Mi", "example.com/nic"] {
        let slice = slice(name, json!([device("d", json!({"numa": {"int": 0}}))]), Value::Null);
        assert_eq!(World::with(vec![slice]).topology().zones, World::default().topology().zones);
    }
}

#[test]
fn a_claim_of_excluded_pods_only_looks_free() {
    let rules = |name: &str| {
        let pods = vec![PodPattern { namespace: Pattern::any(), name: name.parse().unwrap() }];
        ZoneRules { exclude: NodeExclusions { pods, ..NodeExclusions::default() }, ..ZoneRules::default() }
    };
    let of = |pattern: &str| {
        let case = Case { rules: rules(pattern), ..case() };
        let mut world = World { case: Some(case), ..World::with(vec![grouped()]) };
        world = world.claim("a", &[cpus("cpudevnuma001", 4)]);
        world.read.claims.get_mut("ns/a").unwrap().pods = ["p".to_owned(), "q".to_owned()].into();
        world.of("cpu")[1][2]
    };
    assert_eq!((of("?"), of("p"), of("other")), (8, 4, 4));
}

#[test]
fn drivers_with_a_device_in_a_zone_are_known_by_their_slices() {
    let of = |driver: &str, attributes: Value| slice(driver, json!([device("d", attributes)]), Value::Null);
    let pci = |address: &str| json!({"resource.kubernetes.io/pciBusID": {"string": address}});
    let world = World::with(vec![
        grouped(),
        of("attribute.example.com", json!({"numa": {"int": 0}})),
        of("pci.example.com", pci("0000:8a:00.0")),
        of("without.example.com", pci("0000:01:00.0")),
        of("unread.example.com", pci("0000:02:00.0")),
        of("nothing.example.com", json!({})),
    ]);
    let pci = [("0000:8a:00.0".to_owned(), Some(1)), ("0000:01:00.0".to_owned(), None)];
    let read = NodeClaims { inventory: world.inventory().into(), pci: Arc::new(pci.into()), ..world.read };
    assert_eq!(read.placed_drivers(), ["attribute.example.com", "pci.example.com"].into());
}

#[test]
fn each_claim_tells_what_it_holds() {
    let memory = |name: &str, size: &str| {
        json!({"name": name, "allowMultipleAllocations": true, "capacity": {"size": {"value": "16Gi"}},
            "attributes": {"numaNode": {"int": 1}, "resource.kubernetes.io/pageSize": {"string": size}}})
    };
    let size = |device: &str, size: &str| {
        let mut result = result("dra.memory", device);
        result["consumedCapacity"] = json!({"size": size});
        result
    };
    let world = World::with(vec![
        grouped(),
        slice("dra.memory", json!([memory("memory-x", "4k"), memory("huge-y", "2m")]), Value::Null),
        slice(GPU, json!([gpu(json!({"int": 0})), device("gpu-1", json!({}))]), Value::Null),
    ])
    .claim("known", &[cpus("cpudevnuma001", 2), result(GPU, "gpu-1")])
    .cdi(CPU_KIND, "known", "DRA_CPUSET_known=6-7")
    .claim(
        "unknown",
        &[
            cpus("cpudevnuma001", 3),
            cpus("cpudevnuma001", 1),
            size("memory-x", "4Gi"),
            size("memory-x", "1Gi"),
            size("huge-y", "2Mi"),
            result(GPU, "gpu-0"),
            result(GPU, "gpu-1"),
        ],
    );
    let read = NodeClaims { inventory: world.inventory().into(), ..world.read };
    let machine = machine();
    let found: Vec<(&str, Holding)> =
        claims::holdings(&machine, &read).into_iter().map(|(name, _, holding)| (name, holding)).collect();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    let known = Holding {
        nodes: ids("1"),
        cpus: ids("6-7"),
        devices: [(GPU.to_owned(), names(&["gpu-1"]))].into(),
        ..Holding::default()
    };
    let unknown = Holding {
        nodes: ids("0-1"),
        other_cpus: 4,
        memory: [("memory".to_owned(), 5 * GIB), ("hugepages-2Mi".to_owned(), 2 * MIB)].into(),
        devices: [(GPU.to_owned(), names(&["gpu-0", "gpu-1"]))].into(),
        ..Holding::default()
    };
    assert_eq!(found, [("ns/known", known), ("ns/unknown", unknown)]);
}

#[test]
fn what_a_claim_holds_is_known_from_its_allocation_or_from_devices_in_the_list() {
    let claim = |is_allocated: bool| Claim { is_allocated, ..Claim::default() };
    let device = claims::Allocated { driver: GPU.into(), ..claims::Allocated::default() };
    let of_list = |devices: Vec<claims::Allocated>| ClaimInUse {
        is_known: !devices.is_empty(),
        claim: Claim { devices, ..Claim::default() },
        pods: ["p".to_owned()].into(),
    };
    let of = |read: Option<Option<&Claim>>, listed: Option<ClaimInUse>| {
        let listed: BTreeMap<String, ClaimInUse> =
            listed.into_iter().map(|of| ("ns/a".to_owned(), of)).collect();
        let named = NamedClaims::from([("ns/a".to_owned(), ClaimPods::default())]);
        let known = claims::known_claims(named, &listed, |_| read);
        known.get("ns/a").map(|of| (of.is_known, of.claim.devices.len()))
    };
    let (allocated, other) = (claim(true), claim(false));
    assert_eq!(of(Some(Some(&allocated)), Some(of_list(vec![device.clone()]))), Some((true, 0)));
    assert_eq!(of(Some(Some(&allocated)), None), Some((true, 0)));
    for read in [None, Some(None), Some(Some(&other))] {
        assert_eq!(of(read, None), None);
        assert_eq!(of(read, Some(of_list(vec![]))), Some((false, 0)));
        assert_eq!(of(read, Some(of_list(vec![device.clone()]))), Some((true, 1)));
    }
}

#[test]
fn a_pod_that_has_the_name_of_an_earlier_one_is_another() {
    let pods = |names: [&str; 1], uids: &[&str]| ClaimPods {
        names: names.map(str::to_owned).into(),
        uids: uids.iter().map(|uid| (*uid).to_owned()).collect(),
    };
    let before = pods(["web-0"], &["1"]);
    assert!(before.are_among(&before) && pods(["web-0"], &[]).are_among(&before));
    assert!(!pods(["web-0"], &["2"]).are_among(&before) && !pods(["web-1"], &["1"]).are_among(&before));
}

#[test]
fn claims_are_named_by_the_list_and_by_pods_that_have_not_ended() {
    let pod = |name: &str, phase: &str| {
        let json = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
            "spec": {"containers": [{"name": "main"}], "resourceClaims": [{"name": "x", "resourceClaimName": "a"}]},
            "status": {"phase": phase},
        });
        crate::pod::Pod::from_json(json.to_string().as_bytes()).unwrap()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
    let of_list = ClaimInUse { pods: names(&["listed"]), ..ClaimInUse::default() };
    let listed = [("ns/a".to_owned(), of_list.clone()), ("ns/b".to_owned(), of_list)].into();
    let pods = [pod("bound", "Pending"), pod("runs", "Running"), pod("done", "Succeeded")];
    let named = claims::named_claims(&listed, &pods);
    let both =
        ClaimPods { names: names(&["bound", "listed", "runs"]), uids: names(&["uid-bound", "uid-runs"]) };
    let only_listed = ClaimPods { names: names(&["listed"]), ..ClaimPods::default() };
    assert_eq!(named, [("ns/a".to_owned(), both), ("ns/b".to_owned(), only_listed)].into());
}

#[test]
fn a_watch_resumes_after_the_version_of_a_slice() {
    let object = json!({"metadata": {"name": "s", "resourceVersion": "42"}});
    assert_eq!(serde_json::from_value::<claims::SliceObject>(object).unwrap().version(), "42");
}
