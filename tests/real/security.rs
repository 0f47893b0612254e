//! What a stolen token can do: every attempt is made against a real API server, with tokens as the server
//! itself issues them for pods, under the RBAC rules and policies that the chart renders.
//! docs/internals/attempts.md has the table.
//!
//! Attempts on a resource that the policies cover are made twice more: without the policies, which shows what
//! only the policies prevent; and with every permission in RBAC, which shows what the policies prevent by
//! themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tonic::codegen::http::Request;

use crate::support::chart::{AGENT, Chart, POLICIES, RELEASE, RIGHTS};
use crate::support::kai::OBSERVED;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, document, koordinator, tokens};

const V1ALPHA1: &str = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies";
const V1ALPHA2: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const CONTROLLER: &str = "numacast-controller";
const PURGE: &str = "numacast-purge";
/// The account of `helm test`; it exists during the test only, and changes nothing.
const CHECK: &str = "numacast-check";

/// The result of an attempt, and which layer decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Yes,
    /// RBAC denies it.
    Rights,
    /// An admission policy denies it.
    Policy,
    /// The server rejects it with this code, regardless of the user.
    Code(u16),
}
use Outcome::{Code, Policy, Rights, Yes};

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Yes => f.write_str("yes"),
            Rights => f.write_str("no: RBAC"),
            Policy => f.write_str("no: policy"),
            Code(401) => f.write_str("no: the token is invalid (401)"),
            Code(code) => write!(f, "no: invalid request ({code})"),
        }
    }
}

/// An API request.
#[derive(Clone, Debug)]
struct Call {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Value,
    /// The user to impersonate.
    acting_as: Option<&'static str>,
}

fn call(method: &'static str, path: impl Into<String>, body: Value) -> Call {
    Call { method, path: path.into(), content_type: "application/json", body, acting_as: None }
}

fn get(path: impl Into<String>) -> Call {
    call("GET", path, Value::Null)
}

fn delete(path: impl Into<String>) -> Call {
    call("DELETE", path, Value::Null)
}

fn create(path: impl Into<String>, body: Value) -> Call {
    call("POST", path, body)
}

fn put(path: impl Into<String>, body: Value) -> Call {
    call("PUT", path, body)
}

fn merge(path: impl Into<String>, body: Value) -> Call {
    Call { content_type: "application/merge-patch+json", ..call("PATCH", path, body) }
}

fn json_patch(path: impl Into<String>, body: Value) -> Call {
    Call { content_type: "application/json-patch+json", ..call("PATCH", path, body) }
}

fn apply(path: &str, body: Value) -> Call {
    let and = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{and}fieldManager=numacast&force=true");
    Call { content_type: "application/apply-patch+yaml", ..call("PATCH", path, body) }
}

/// One row of the table.
#[derive(Clone, Debug)]
struct Attempt {
    /// The token's owner.
    who: &'static str,
    /// A description for the table.
    what: &'static str,
    call: Call,
    /// Result under the chart's RBAC rules and policies.
    outcome: Outcome,
    /// Result without the policies.
    bare: Outcome,
    /// Result with every permission in RBAC, with the policies; not tried if they do not cover the resource.
    free: Option<Outcome>,
    /// Whether there is no object at first.
    at_first: bool,
    /// Text expected in the message of the policy that denies it.
    because: &'static str,
}

/// An attempt that the policies do not cover.
fn plain(who: &'static str, what: &'static str, call: Call, outcome: Outcome) -> Attempt {
    Attempt { who, what, call, outcome, bare: outcome, free: None, at_first: false, because: "" }
}

/// An attempt that the policies cover.
fn covered(who: &'static str, what: &'static str, call: Call, outcomes: [Outcome; 3]) -> Attempt {
    let [outcome, bare, free] = outcomes;
    Attempt { who, what, call, outcome, bare, free: Some(free), at_first: false, because: "" }
}

impl Attempt {
    fn at_first(mut self) -> Self {
        self.at_first = true;
        self
    }
}

/// An object as an agent writes it.
fn topology(version: &str, name: &str, metadata: Value) -> Value {
    let mut object = json!({
        "apiVersion": format!("topology.node.k8s.io/{version}"),
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "zones": zones(2),
    });
    match version {
        "v1alpha1" => object["topologyPolicies"] = json!(["None"]),
        _ => object["attributes"] = json!([attribute("topologyManagerPolicy", "none")]),
    }
    for (key, value) in metadata.as_object().into_iter().flatten() {
        object["metadata"][key] = value.clone();
    }
    object
}

fn attribute(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

/// The first `count` zones, as an agent writes them.
fn zones(count: usize) -> Vec<Value> {
    let costs: Vec<Value> = (0..count).map(|id| json!({"name": format!("node-{id}"), "value": 10})).collect();
    let zone = |id: usize| {
        json!({"name": format!("node-{id}"), "type": "Node", "costs": costs, "resources": [
            {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"},
            {"name": "memory", "capacity": "1073741824", "allocatable": "1073741824", "available": "0"},
        ]})
    };
    (0..count).map(zone).collect()
}

/// A change that an agent may make to an object.
fn change() -> Value {
    json!({"attributes": [attribute("topologyManagerPolicy", "restricted")]})
}

fn at(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

fn event(about: Value) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "event-", "namespace": "default"},
        "regarding": about,
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Warning",
        "reason": "StaleOwner",
        "action": "Publish",
        "note": "a note",
        "reportingController": "numacast/agent",
        "reportingInstance": "alpha",
    })
}

fn about_node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": name})
}

fn lease(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}})
}

/// Returns an [`event`] about the agent's own Node with another value at one key.
fn event_with(key: &str, value: Value) -> Value {
    let mut event = event(about_node("alpha"));
    event[key] = value;
    event
}

fn events_of_core() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "event-", "namespace": "default"},
        "involvedObject": about_node("beta"),
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Warning",
        "reason": "StaleOwner",
        "action": "Publish",
        "message": "a note",
        "reportingComponent": "numacast/agent",
        "reportingInstance": "alpha",
    })
}

/// Writes of the agent on node `alpha`; `uids` are those of both Nodes.
fn of_topologies(uids: &BTreeMap<&str, String>) -> Vec<Attempt> {
    let who = "agent";
    let (yes, foreign, owned) = ([Yes, Yes, Yes], [Policy, Yes, Policy], [Policy, Yes, Policy]);
    let (own, other) = (at(V1ALPHA2, "alpha"), at(V1ALPHA2, "beta"));
    let new = |name: &str| topology("v1alpha2", name, json!({}));
    let old = |name: &str| topology("v1alpha1", name, json!({}));
    let with = |metadata: Value| json!({"metadata": metadata});
    let owner = |kind: &str, name: &str, of: &str| {
        let version = if kind == "Deployment" { "apps/v1" } else { "v1" };
        json!([{"apiVersion": version, "kind": kind, "name": name, "uid": uids.get(of)}])
    };
    let mut blocking = owner("Node", "alpha", "alpha");
    blocking[0]["blockOwnerDeletion"] = json!(true);
    let mut controlling = owner("Node", "alpha", "alpha");
    controlling[0]["controller"] = json!(true);
    let anonymous = topology("v1alpha2", "", json!({"name": null, "generateName": "beta"}));
    vec![
        covered(who, "create the object of its node", create(V1ALPHA2, new("alpha")), yes).at_first(),
        covered(who, "create it by server-side apply", apply(&own, new("alpha")), yes).at_first(),
        covered(who, "apply it", apply(&own, new("alpha")), yes),
        covered(
            who,
            "apply it in v1alpha1 with unchanged `topologyPolicies`",
            apply(&at(V1ALPHA1, "alpha"), old("alpha")),
            yes,
        ),
        covered(who, "change it by a merge patch", merge(&own, change()), yes),
        covered(
            who,
            "make its Node the owner",
            merge(&own, with(json!({"ownerReferences": owner("Node", "alpha", "alpha")}))),
            yes,
        ),
        covered(who, "replace it (`update`)", put(&own, new("alpha")), [Rights, Rights, Yes]),
        covered(who, "rename it", merge(&own, with(json!({"name": "beta"}))), [Code(400); 3]),
        covered(
            who,
            "create it in v1alpha1 (only with `publish.apiVersion: v1alpha1`)",
            create(V1ALPHA1, old("alpha")),
            foreign,
        )
        .at_first(),
        covered(who, "create the object of another node", create(V1ALPHA2, new("beta")), foreign).at_first(),
        covered(who, "create it by server-side apply", apply(&other, new("beta")), foreign).at_first(),
        covered(who, "create it in v1alpha1", create(V1ALPHA1, old("beta")), foreign).at_first(),
        covered(who, "apply it", apply(&other, new("beta")), foreign),
        covered(who, "apply it in v1alpha1", apply(&at(V1ALPHA1, "beta"), old("beta")), foreign),
        covered(who, "change it by a merge patch", merge(&other, change()), foreign),
        covered(
            who,
            "change it by a merge patch in v1alpha1",
            merge(at(V1ALPHA1, "beta"), json!({"topologyPolicies": ["Restricted"]})),
            foreign,
        ),
        covered(
            who,
            "change it by a JSON patch",
            json_patch(
                &other,
                json!([{"op": "replace", "path": "/zones/0/resources/0/available", "value": "0"}]),
            ),
            foreign,
        ),
        covered(who, "change it, dry run", merge(format!("{other}?dryRun=All"), change()), foreign),
        covered(who, "replace it (`update`)", put(&other, new("beta")), [Rights, Rights, Policy]),
        covered(
            who,
            "create an object for a node that does not exist",
            create(V1ALPHA2, new("nowhere")),
            foreign,
        ),
        covered(who, "create an object with a generated name", create(V1ALPHA2, anonymous), foreign),
        covered(who, "delete the object of its node", delete(&own), [Rights, Rights, Policy]),
        covered(who, "delete that of another node", delete(&other), [Rights, Rights, Policy]),
        covered(
            who,
            "delete that of another node in v1alpha1",
            delete(at(V1ALPHA1, "beta")),
            [Rights, Rights, Policy],
        ),
        covered(who, "delete all (`deletecollection`)", delete(V1ALPHA2), [Rights, Rights, Policy]),
        covered(
            who,
            "make another Node the owner of its object",
            merge(&own, with(json!({"ownerReferences": owner("Node", "beta", "beta")}))),
            owned,
        ),
        covered(
            who,
            "make its Node the owner with the UID of another",
            merge(&own, with(json!({"ownerReferences": owner("Node", "alpha", "beta")}))),
            owned,
        ),
        covered(
            who,
            "make its Node the `controller` of its object",
            merge(&own, with(json!({"ownerReferences": controlling}))),
            owned,
        ),
        covered(
            who,
            "make something else the owner",
            merge(&own, with(json!({"ownerReferences": owner("ConfigMap", "alpha", "alpha")}))),
            owned,
        ),
        covered(
            who,
            "create its object with another owner",
            create(
                V1ALPHA2,
                topology("v1alpha2", "alpha", json!({"ownerReferences": owner("Node", "beta", "beta")})),
            ),
            owned,
        )
        .at_first(),
        covered(
            who,
            "block the deletion of its Node (`blockOwnerDeletion`)",
            merge(&own, with(json!({"ownerReferences": blocking}))),
            owned,
        ),
        covered(
            who,
            "add a finalizer to its object",
            merge(&own, with(json!({"finalizers": ["example.com/stay"]}))),
            owned,
        ),
        covered(
            who,
            "create its object with a finalizer",
            create(V1ALPHA2, topology("v1alpha2", "alpha", json!({"finalizers": ["example.com/stay"]}))),
            owned,
        )
        .at_first(),
        covered(
            who,
            "change the status subresource",
            merge(format!("{own}/status"), change()),
            [Rights, Rights, Code(404)],
        ),
        plain(who, "read the object of any node", get(&other), Yes),
        plain(who, "list all", get(V1ALPHA2), Rights),
    ]
}

/// Single changes of what an agent writes that would stop or mislead the readers of every node's object.
fn of_content() -> Vec<Attempt> {
    type Change = Box<dyn Fn(&mut Value)>;
    let own = at(V1ALPHA2, "alpha");
    let write = |what: &'static str, change: Change, outcomes: [Outcome; 3]| {
        let mut object = topology("v1alpha2", "alpha", json!({}));
        change(&mut object);
        covered("agent", what, apply(&own, object), outcomes)
    };
    let yes = |what: &'static str, change: Change| write(what, change, [Yes, Yes, Yes]);
    let no = |what: &'static str, because: &'static str, change: Change| Attempt {
        because,
        ..write(what, change, [Policy, Yes, Policy])
    };
    let attributed = |name: &'static str, value: &'static str| -> Change {
        Box::new(move |object| object["attributes"] = json!([attribute(name, value)]))
    };
    let placed = |vector: &'static str| -> Change {
        Box::new(move |object| {
            object["attributes"] = json!([attribute(METADATA, "npv0v001::ve=leb89::cc=3::nn=2::bn=0")]);
            object["zones"][1]["attributes"] = json!([attribute(VECTOR, vector)]);
        })
    };
    let of_zone = |all: &'static [(&str, &str)]| -> Change {
        Box::new(move |object| {
            object["zones"][0]["attributes"] =
                all.iter().map(|(name, value)| attribute(name, value)).collect();
        })
    };
    let named = |name: String| -> Change {
        Box::new(move |object| {
            object["zones"] = json!(zones(1));
            object["zones"][0]["resources"][0]["name"] = json!(name);
        })
    };
    // Kubernetes permits capitals.
    let driver = |length: usize| format!("GPU.{}", "a".repeat(length - 4));
    let amount = |value: &'static str| -> Change {
        Box::new(move |object| object["zones"][1]["resources"][0]["available"] = json!(value))
    };
    let metadata = |value: Value| -> Change {
        Box::new(move |object| {
            for (key, value) in value.as_object().into_iter().flatten() {
                object["metadata"][key] = value.clone();
            }
        })
    };
    let annotated = |key: &str, value: &str| metadata(json!({"annotations": {key: value}}));
    vec![
        yes("write every attribute that agents write", Box::new(|object| *object = full("alpha"))),
        yes("write eight zones", Box::new(|object| object["zones"] = json!(zones(8)))),
        no(
            "write nine zones (`admissionPolicy.maxZones`)",
            "has 9 zones, and agents may write 8",
            Box::new(|o| o["zones"] = json!(zones(9))),
        ),
        no(
            "write 64 empty zones",
            "has 64 zones, and agents may write 8",
            Box::new(|object| {
                object["zones"] =
                    (0..64).map(|id| json!({"name": format!("node-{id}"), "type": "Node"})).collect();
            }),
        ),
        no(
            "start with zone `node-1`",
            "zones are node-0",
            Box::new(|object| object["zones"] = json!(zones(2)[1..])),
        ),
        no("write `node-0` twice", "zones are node-0", Box::new(|o| o["zones"][1]["name"] = json!("node-0"))),
        no(
            "write `node-64`",
            "zones are node-0",
            Box::new(|object| object["zones"][1]["name"] = json!("node-64")),
        ),
        no(
            "write a zone of another type",
            "zones have the type Node",
            Box::new(|object| object["zones"][0]["type"] = json!("Socket")),
        ),
        no(
            "write a zone with a parent",
            "zones have the type Node",
            Box::new(|object| object["zones"][1]["parent"] = json!("node-0")),
        ),
        no(
            "leave out a cost",
            "every zone has a cost",
            Box::new(|object| {
                object["zones"][0]["costs"].as_array_mut().map(Vec::pop);
            }),
        ),
        no(
            "write a cost of 256",
            "every zone has a cost",
            Box::new(|o| o["zones"][0]["costs"][0]["value"] = json!(256)),
        ),
        no(
            "write a negative cost",
            "every zone has a cost",
            Box::new(|o| o["zones"][0]["costs"][0]["value"] = json!(-1)),
        ),
        no(
            "list a resource in only one zone",
            "every zone lists the same resources",
            Box::new(|object| {
                object["zones"][1]["resources"].as_array_mut().map(Vec::pop);
            }),
        ),
        no(
            "list 257 resources",
            "every zone lists the same resources",
            Box::new(|object| {
                let resource = |number| json!({"name": format!("a/{number}"), "capacity": 1, "allocatable": 1, "available": 1});
                object["zones"] = json!(zones(1));
                object["zones"][0]["resources"] = (0..257).map(resource).collect();
            }),
        ),
        no(
            "list an invalid resource name",
            "every zone lists the same resources",
            named("all cpus".to_owned()),
        ),
        yes("list the devices of a DRA driver (`gpu.nvidia.com`)", named("gpu.nvidia.com".to_owned())),
        yes("list those of a driver whose name has 63 characters", named(driver(63))),
        no("list those of one with 64", "every zone lists the same resources", named(driver(64))),
        no(
            "list a driver's name without a dot",
            "every zone lists the same resources",
            named("gpu".to_owned()),
        ),
        no(
            "list one with two dots in a row",
            "every zone lists the same resources",
            named("gpu..com".to_owned()),
        ),
        no("write a negative amount", "amounts are whole numbers", amount("-1")),
        no("write an amount with a suffix (`100P`)", "amounts are whole numbers", amount("100P")),
        no("write an amount with an exponent (`1e999999`)", "amounts are whole numbers", amount("1e999999")),
        no("write an amount of 17 digits", "amounts are whole numbers", amount("10000000000000000")),
        no(
            "write an unknown attribute",
            "no agent writes the attribute a with the value b",
            attributed("a", "b"),
        ),
        no(
            "write an unknown policy",
            "no agent writes the attribute topologyManagerPolicy with the value all",
            attributed("topologyManagerPolicy", "all"),
        ),
        no(
            "write `topologyManagerMaxNUMANodes` of 2",
            "no agent writes the attribute topologyManagerMaxNUMANodes with the value 2",
            attributed("topologyManagerMaxNUMANodes", "2"),
        ),
        no(
            "write a malformed fingerprint",
            "no agent writes the attribute nodeTopologyPodsFingerprint",
            attributed("nodeTopologyPodsFingerprint", "pfp0v0"),
        ),
        no(
            "write an attribute twice",
            "up to 64 attributes, each once",
            Box::new(|object| {
                let twice = attribute("topologyManagerScope", "pod");
                object["attributes"] = json!([twice, twice]);
            }),
        ),
        no(
            "write 65 attributes",
            "up to 64 attributes, each once",
            Box::new(|object| {
                let option = |number| attribute(&format!("topologyManagerOptionA{number}"), "true");
                object["attributes"] = (0..65).map(option).collect();
            }),
        ),
        no(
            "write an attribute of 20 KiB",
            "no agent writes attributes of these names",
            Box::new(|o| o["attributes"] = json!([attribute("cpu_core", &"1,".repeat(10 << 10))])),
        ),
        no(
            "write `topologyPolicies` (only with `publish.topologyPolicies`)",
            "writes no topologyPolicies",
            Box::new(|object| object["topologyPolicies"] = json!(["Restricted"])),
        ),
        yes("write the NUMA nodes of containers (only with `consumer: schedulerPlugins`)", placed("#$")),
        no("write the vector `&`, which decodes to -1", "the NUMA nodes of containers are in", placed("&")),
        no("write a vector with an unterminated number", "the NUMA nodes of containers are in", placed("#~")),
        no(
            "write a vector with a number that overflows",
            "the NUMA nodes of containers are in",
            placed("~~~~~~~~!"),
        ),
        no(
            "write a vector with a character outside ASCII",
            "the NUMA nodes of containers are in",
            placed("\u{e9}"),
        ),
        no("write an empty vector", "the NUMA nodes of containers are in", placed("")),
        no("write another attribute of a zone", NO_ZONE_ATTRIBUTE, of_zone(&[("a", "b")])),
        no("write `memoryGroup` with the node 64", NO_ZONE_ATTRIBUTE, of_zone(&[("memoryGroup", "0,64")])),
        no("write `sockets` as words", NO_ZONE_ATTRIBUTE, of_zone(&[("sockets", "all")])),
        no(
            "write an attribute of a zone twice",
            NO_ZONE_ATTRIBUTE,
            of_zone(&[("sockets", "0"), ("sockets", "1")]),
        ),
        no(
            "write an attribute of a zone of 20 KiB",
            NO_ZONE_ATTRIBUTE,
            Box::new(|o| {
                o["zones"][0]["attributes"] =
                    json!([attribute("l3Caches", &["0", &",1".repeat(10 << 10)].concat())])
            }),
        ),
        no(
            "write malformed metadata of placements",
            "no agent writes the attribute topology.node.k8s.io/numaplacement-metadata",
            attributed(METADATA, "npv0v001::ve=leb89::cc=-1"),
        ),
        no(
            "write metadata for other zones",
            "the NUMA nodes of containers are in",
            attributed(METADATA, "npv0v001::ve=leb89::cc=0::nn=64::bn=0"),
        ),
        no(
            "set a label",
            "changes no labels",
            metadata(json!({"labels": {"app.kubernetes.io/instance": "another"}})),
        ),
        no(
            "set the annotation of a fingerprint",
            "changes no annotations",
            annotated(FINGERPRINT_ANNOTATION, "pfp0v001ef46db3751d8e999"),
        ),
        no(
            "set the annotation `numacast.io/nudge`",
            "changes no annotations",
            annotated("numacast.io/nudge", "1"),
        ),
        no(
            "set the annotation `numacast.io/keep`",
            "changes no annotations",
            annotated("numacast.io/keep", "true"),
        ),
    ]
}

const NO_ZONE_ATTRIBUTE: &str = "no agent writes attributes of zones with these names";
const METADATA: &str = "topology.node.k8s.io/numaplacement-metadata";
const VECTOR: &str = "topology.node.k8s.io/numaplacement-vector";
const FINGERPRINT_ANNOTATION: &str = "topology.node.k8s.io/fingerprint";

/// An object with every attribute that an agent may write.
fn full(name: &str) -> Value {
    let mut object = topology("v1alpha2", name, json!({}));
    let attributes = [
        ("topologyManagerPolicy", "single-numa-node"),
        ("topologyManagerScope", "container"),
        ("topologyManagerMaxNUMANodes", "16"),
        ("topologyManagerOptionPreferClosestNumaNodes", "true"),
        ("cpuManagerPolicy", "static"),
        ("cpuManagerOptionFullPcpusOnly", "true"),
        ("memoryManagerPolicy", "Static"),
        ("reservedCPUs", "0,8"),
        ("cpu_atom", "8-15,24"),
        ("cpu_core", "0-7"),
        ("nodeTopologyPodsFingerprint", "pfp0v001ef46db3751d8e999"),
        ("nodeTopologyPodsFingerprintMethod", "with-exclusive-resources"),
        (METADATA, "npv0v001::ve=leb89::cc=5::nn=2::bn=0"),
    ];
    object["attributes"] = attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let of_zone =
        [("l3Caches", "0-3,8-11;4-7,12-15"), ("memoryGroup", "0-1"), ("sockets", "0,1"), (VECTOR, "$#")];
    object["zones"][1]["attributes"] = of_zone.iter().map(|(name, value)| attribute(name, value)).collect();
    object
}

fn of_events() -> Vec<Attempt> {
    let who = "agent";
    let foreign = [Policy, Yes, Policy];
    let about = |about: Value| create(EVENTS, event(about));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "name": "alpha", "namespace": "default"});
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let core = "/api/v1/namespaces/default/events";
    let elsewhere = "/apis/events.k8s.io/v1/namespaces/kube-system/events";
    let mut in_another = event(about_node("alpha"));
    in_another["metadata"]["namespace"] = json!("kube-system");
    let mut lasting = event(about_node("alpha"));
    lasting["metadata"]["finalizers"] = json!(["example.com/stay"]);
    vec![
        covered(who, "post an Event about its Node", about(about_node("alpha")), [Yes, Yes, Yes]),
        covered(who, "post one about another Node", about(about_node("beta")), foreign),
        covered(who, "post one about a Pod", about(pod), foreign),
        covered(
            who,
            "post one that also relates to another Node",
            create(EVENTS, event_with("related", about_node("beta"))),
            foreign,
        ),
        covered(
            who,
            "post one as another component",
            create(EVENTS, event_with("reportingController", json!("kubelet"))),
            foreign,
        ),
        covered(who, "post one with a finalizer", create(EVENTS, lasting), foreign),
        covered(who, "post one in the core API", create(core, events_of_core()), [Rights, Rights, Policy]),
        covered(who, "post one in another namespace", create(elsewhere, in_another), [Rights, Rights, Yes]),
        covered(who, "change an Event", merge(at(EVENTS, "anothers"), label), [Rights, Rights, Policy]),
        covered(who, "delete an Event", delete(at(EVENTS, "anothers")), [Rights, Rights, Policy]),
    ]
}

fn of_the_rest() -> Vec<Attempt> {
    let who = "agent";
    let node = "/api/v1/nodes/alpha";
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let admission = "/apis/admissionregistration.k8s.io/v1";
    let crd =
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/noderesourcetopologies.topology.node.k8s.io";
    let own_pod = format!("/api/v1/namespaces/{RELEASE}/pods/{AGENT}-on-alpha");
    let own_account = format!("/api/v1/namespaces/{RELEASE}/serviceaccounts/{AGENT}");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let binding = json!({
        "metadata": {"name": "mine"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": AGENT, "namespace": RELEASE}],
    });
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let csr = json!({
        "metadata": {"name": "mine"},
        "spec": {"request": "eA==", "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]},
    });
    let no = |what, call| plain(who, what, call, Rights);
    let yes = |what, call| plain(who, what, call, Yes);
    let mut acting = get("/api/v1/namespaces/kube-system/secrets");
    acting.acting_as = Some("admin");
    vec![
        yes("read any Node", get("/api/v1/nodes/beta")),
        no("list Nodes", get("/api/v1/nodes")),
        no("change its Node", merge(node, label.clone())),
        no("change its Node's status", merge(format!("{node}/status"), label.clone())),
        no("reach the kubelet through the API server (`nodes/proxy`)", get(format!("{node}/proxy/configz"))),
        no("delete its Node", delete(node)),
        yes("list the pods of every namespace", get("/api/v1/pods")),
        no("read one pod (`get`)", get(&own_pod)),
        no("change a pod", merge(&own_pod, label.clone())),
        no("delete a pod", delete(&own_pod)),
        no(
            "run a command in a pod",
            create(format!("{own_pod}/exec?command=id&container=main"), Value::Null),
        ),
        no("create a pod", create("/api/v1/namespaces/default/pods", json!({"metadata": {"name": "mine"}}))),
        no("bind a pod", create(format!("{own_pod}/binding"), json!({"target": about_node("alpha")}))),
        no("list Secrets", get("/api/v1/secrets")),
        no("read a Secret", get("/api/v1/namespaces/kube-system/secrets/any")),
        no("list ConfigMaps", get("/api/v1/configmaps")),
        no(
            "change its own DaemonSet",
            merge(format!("/apis/apps/v1/namespaces/{RELEASE}/daemonsets/{AGENT}"), label.clone()),
        ),
        no("request a token of its own service account", create(format!("{own_account}/token"), token)),
        no("impersonate another user", acting),
        no("grant itself permissions", create(format!("{rbac}/clusterrolebindings"), binding)),
        no("change its ClusterRole", merge(format!("{rbac}/clusterroles/{AGENT}"), label.clone())),
        no(
            "change the policy",
            merge(format!("{admission}/validatingadmissionpolicies/{AGENT}"), label.clone()),
        ),
        no(
            "delete the policy's binding",
            delete(format!("{admission}/validatingadmissionpolicybindings/{AGENT}")),
        ),
        no("change the CRD", merge(crd, label.clone())),
        no("request a certificate", create("/apis/certificates.k8s.io/v1/certificatesigningrequests", csr)),
        no("list Leases", get("/apis/coordination.k8s.io/v1/leases")),
        yes("read the Device of any node (only with the proxy)", get(at(DEVICES_OF_ALL, "beta"))),
        no("list Devices", get(DEVICES_OF_ALL)),
        no("change the Device of its node", merge(at(DEVICES_OF_ALL, "alpha"), label)),
    ]
}

/// The agent's service account with tokens other than its pod's.
fn of_other_tokens() -> Vec<Attempt> {
    let own = at(V1ALPHA2, "alpha");
    let write = |who, what, outcomes| covered(who, what, merge(&own, change()), outcomes);
    let denied = [Policy, Yes, Policy];
    vec![
        covered(
            "agent on beta",
            "change the object of node `beta`",
            merge(at(V1ALPHA2, "beta"), change()),
            [Yes, Yes, Yes],
        ),
        write("agent on beta", "change the object of node `alpha`", denied),
        write("no pod", "change the object of node `alpha`", denied),
        covered(
            "no pod",
            "post an Event about Node `alpha`",
            create(EVENTS, event(about_node("alpha"))),
            denied,
        ),
        plain("no pod", "read the object of any node", get(&own), Yes),
        write("a pod without a node", "change the object of node `alpha`", denied),
        plain("a deleted pod", "read the object of any node", get(&own), Code(401)),
    ]
}

/// Changes of pods by the agent on node `alpha`, which annotates pods for KAI-Scheduler.
fn of_pods() -> Vec<Attempt> {
    let who = "agent";
    let pods = format!("/api/v1/namespaces/{RELEASE}/pods");
    let own = format!("{pods}/{AGENT}-on-alpha");
    let status = |pod: &str| format!("{pods}/{pod}/status");
    let of_own = status(&format!("{AGENT}-on-alpha"));
    let metadata = |key: &str, value: Value| json!({"metadata": {key: value}});
    let annotated = |value: Value| metadata("annotations", json!({OBSERVED: value}));
    let value = r#"[{"zone":"node-0","amount":{"cpu":"8","nvidia.com/gpu":"2"}},{"zone":"node-10","amount":{"memory":"17179869184"}}]"#;
    let observed = || annotated(json!(value));
    let long = format!("[{}]", vec![r#"{"zone":"node-0","amount":{"cpu":"8"}}"#; 2000].join(","));
    let change = |what, body: Value, outcomes| covered(who, what, merge(&of_own, body), outcomes);
    let (yes, denied, never) = ([Yes, Yes, Yes], [Policy, Yes, Policy], [Rights, Rights, Policy]);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "alpha", "uid": "any"}]);
    let image = json!({"spec": {"containers": [{"name": "main", "image": "another"}]}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": format!("{AGENT}-on-alpha")}});
    let on_beta = status(&format!("{AGENT}-on-beta"));
    vec![
        change("set the annotation of a pod of its node", observed(), yes),
        change("remove it", annotated(Value::Null), yes),
        covered(who, "set that of a pod of another node", merge(&on_beta, observed()), denied),
        covered(who, "set that of a pod that is on no node", merge(status("pending"), observed()), denied),
        change("set it to another value", annotated(json!("[1]")), denied),
        change("set it to a zone `node-64`", annotated(json!(value.replace("node-10", "node-64"))), denied),
        change("set it to 80 KB", annotated(json!(long)), denied),
        change("set another annotation", metadata("annotations", json!({"a": "b"})), denied),
        change("set a label", metadata("labels", json!({"a": "b"})), denied),
        change("add a finalizer", metadata("finalizers", json!(["example.com/stay"])), denied),
        change("make a Node the owner, which changes nothing", metadata("ownerReferences", owner), yes),
        change("change the phase", json!({"status": {"phase": "Failed"}}), denied),
        change("change the pod's address", json!({"status": {"podIP": "10.0.0.1"}}), denied),
        change("change the image through the status, which changes nothing", image.clone(), yes),
        covered(who, "change the image", merge(&own, image), never),
        covered(who, "set the annotation through the pod", merge(&own, observed()), never),
        covered(who, "delete a pod of its node", delete(&own), never),
        covered(who, "evict it", create(format!("{own}/eviction"), eviction), never),
        covered(
            who,
            "run a command in it",
            create(format!("{own}/exec?command=id&container=main"), Value::Null),
            never,
        ),
        covered("no pod", "set the annotation of a pod", merge(&of_own, observed()), denied),
        covered("a pod without a node", "set the annotation of a pod", merge(&of_own, observed()), denied),
        covered("agent on beta", "set that of a pod of its node", merge(&on_beta, observed()), yes),
    ]
}

fn of_the_controller() -> Vec<Attempt> {
    let who = "controller";
    let own = at(V1ALPHA2, "alpha");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let sets = |namespace: &str| format!("/apis/apps/v1/namespaces/{namespace}/daemonsets");
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases");
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}});
    let mut event = event(about_node("alpha"));
    event["reportingController"] = json!("numacast/controller");
    let no = |what, call| plain(who, what, call, Rights);
    let yes = |what, call| plain(who, what, call, Yes);
    let (nudged, foreign) = ([Yes, Yes, Yes], [Policy, Yes, Policy]);
    let metadata = |key: &str, value: Value| merge(&own, json!({"metadata": {key: value}}));
    let nudge = json!({"metadata": {"annotations": {"numacast.io/nudge": "2026-01-01T00:00:00Z"}}});
    let mut more = nudge.clone();
    more["zones"] = json!([]);
    let mut replaced = topology("v1alpha2", "alpha", json!({}));
    replaced["zones"] = json!([]);
    let node = json!([{"apiVersion": "v1", "kind": "Node", "name": "alpha", "uid": "any"}]);
    vec![
        yes("list the objects of all nodes", get(V1ALPHA2)),
        yes("watch them", get(format!("{V1ALPHA2}?watch=true&timeoutSeconds=1"))),
        covered(who, "delete the object of any node", delete(&own), [Yes, Yes, Yes]),
        no("delete all (`deletecollection`)", delete(V1ALPHA2)),
        covered(
            who,
            "change the annotation `numacast.io/nudge` of any object",
            merge(&own, nudge.clone()),
            nudged,
        ),
        covered(who, "change it in v1alpha1", merge(at(V1ALPHA1, "alpha"), nudge.clone()), nudged),
        covered(
            who,
            "change it by a JSON patch",
            json_patch(
                &own,
                json!([
                    {"op": "add", "path": "/metadata/annotations", "value": {"numacast.io/nudge": "1"}},
                ]),
            ),
            nudged,
        ),
        covered(
            who,
            "set it to a value that is too long",
            metadata("annotations", json!({"numacast.io/nudge": "x".repeat(65)})),
            foreign,
        ),
        covered(who, "change it together with the zones", merge(&own, more), foreign),
        covered(who, "change other content of an object", merge(&own, change()), foreign),
        covered(
            who,
            "change it in v1alpha1",
            merge(at(V1ALPHA1, "alpha"), json!({"topologyPolicies": ["Restricted"]})),
            foreign,
        ),
        covered(
            who,
            "remove content of an object",
            json_patch(&own, json!([{"op": "remove", "path": "/attributes"}])),
            foreign,
        ),
        covered(
            who,
            "change another annotation",
            metadata("annotations", json!({"numacast.io/keep": "true"})),
            foreign,
        ),
        covered(who, "set a label", merge(&own, label.clone()), foreign),
        covered(
            who,
            "add a finalizer to an object",
            metadata("finalizers", json!(["example.com/stay"])),
            foreign,
        ),
        covered(who, "make a Node the owner", metadata("ownerReferences", node), foreign),
        covered(who, "apply an object", apply(&own, replaced.clone()), foreign),
        covered(who, "replace an object (`update`)", put(&own, replaced), [Rights, Rights, Policy]),
        covered(
            who,
            "create an object",
            create(V1ALPHA2, topology("v1alpha2", "alpha", json!({}))),
            [Rights, Rights, Policy],
        )
        .at_first(),
        covered(
            who,
            "create an object by server-side apply",
            apply(&own, topology("v1alpha2", "alpha", json!({}))),
            [Rights, Rights, Policy],
        )
        .at_first(),
        covered(
            who,
            "change the status subresource",
            merge(format!("{own}/status"), change()),
            [Rights, Rights, Code(404)],
        ),
        yes("list Nodes", get("/api/v1/nodes")),
        no("change a Node", merge("/api/v1/nodes/alpha", label.clone())),
        no("delete a Node", delete("/api/v1/nodes/alpha")),
        no(
            "reach a kubelet through the API server (`nodes/proxy`)",
            get("/api/v1/nodes/alpha/proxy/configz"),
        ),
        yes("list the pods of its namespace", get(format!("/api/v1/namespaces/{RELEASE}/pods"))),
        yes("list the pods of every namespace", get("/api/v1/pods")),
        no("read one pod (`get`)", get(format!("/api/v1/namespaces/{RELEASE}/pods/{AGENT}-on-alpha"))),
        no(
            "change a pod",
            merge(format!("/api/v1/namespaces/{RELEASE}/pods/{AGENT}-on-alpha"), label.clone()),
        ),
        no("delete a pod", delete(format!("/api/v1/namespaces/{RELEASE}/pods/{AGENT}-on-alpha"))),
        yes("read the agents' DaemonSet", get(format!("{}/{AGENT}", sets(RELEASE)))),
        no("list DaemonSets", get(sets(RELEASE))),
        no("change the agents' DaemonSet", merge(format!("{}/{AGENT}", sets(RELEASE)), label.clone())),
        no("delete the agents' DaemonSet", delete(format!("{}/{AGENT}", sets(RELEASE)))),
        yes("change its Lease", put(at(&leases, CONTROLLER), lease(CONTROLLER))),
        yes("create a Lease in its namespace", create(&leases, lease("new"))),
        no("change another Lease", put(at(&leases, "another"), lease("another"))),
        yes("post an Event about any Node", create(EVENTS, event)),
        no("list Secrets", get(format!("/api/v1/namespaces/{RELEASE}/secrets"))),
        no("list ConfigMaps", get(format!("/api/v1/namespaces/{RELEASE}/configmaps"))),
        no(
            "request a token of an agent",
            create(
                format!("/api/v1/namespaces/{RELEASE}/serviceaccounts/{AGENT}/token"),
                json!({"spec": {"audiences": []}}),
            ),
        ),
    ]
}

fn of_the_purge() -> Vec<Attempt> {
    let who = "purge hook";
    let sets = format!("/apis/apps/v1/namespaces/{RELEASE}/daemonsets");
    let no = |what, call| plain(who, what, call, Rights);
    let yes = |what, call| plain(who, what, call, Yes);
    vec![
        yes("delete the object of any node", delete(at(V1ALPHA2, "alpha"))),
        no("change an object", merge(at(V1ALPHA2, "beta"), json!({"attributes": []}))),
        no("delete another DaemonSet", delete(at(&sets, "another"))),
        yes("list the pods of its namespace", get(format!("/api/v1/namespaces/{RELEASE}/pods"))),
        yes("list Nodes", get("/api/v1/nodes")),
        no("list Secrets", get(format!("/api/v1/namespaces/{RELEASE}/secrets"))),
        yes("delete the agents' DaemonSet", delete(at(&sets, AGENT))),
    ]
}

/// A cluster with two nodes, the release's RBAC rules, and the clients of every account.
struct World {
    cluster: Cluster,
    chart: Chart,
    clients: BTreeMap<&'static str, Client>,
    uids: BTreeMap<&'static str, String>,
}

impl World {
    async fn start(parts: &Parts) -> Result<Self> {
        // Enables everything in the chart that gives agents more rights, except for KAI-Scheduler.
        Self::start_with(parts, json!({"config": {"proxy": {"enabled": true}}})).await
    }

    async fn start_with(parts: &Parts, values: Value) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        let chart = Chart::render(parts, &values)?;
        let admin = cluster.client();
        tokens::namespace(&admin, RELEASE).await?;
        koordinator::install(&admin).await?;
        chart.install(&admin, &RIGHTS).await?;
        chart.install(&admin, &["Lease"]).await?;
        let mut uids = BTreeMap::new();
        for name in ["alpha", "beta"] {
            let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
            let node = Api::<Node>::all(admin.clone()).create(&PostParams::default(), &node).await?;
            uids.insert(name, node.metadata.uid.context("a Node without a UID")?);
            koordinator::describe(&admin, name, json!([])).await?;
        }
        let mut clients = BTreeMap::new();
        for (who, account, node) in [
            ("agent", AGENT, "alpha"),
            ("agent on beta", AGENT, "beta"),
            ("controller", CONTROLLER, "beta"),
            ("purge hook", PURGE, "beta"),
        ] {
            let token = tokens::on_node(&admin, RELEASE, account, node).await?;
            clients.insert(who, cluster.client_of(&who.replace(' ', "-"), &token).await?);
        }
        let unbound = tokens::request(&admin, RELEASE, AGENT, None).await?;
        clients.insert("no pod", cluster.client_of("unbound", &unbound).await?);
        let pending = tokens::pod_of(&admin, RELEASE, AGENT, "pending", None).await?;
        let pending = tokens::request(&admin, RELEASE, AGENT, Some(tokens::to_pod(&pending))).await?;
        clients.insert("a pod without a node", cluster.client_of("pending", &pending).await?);
        let gone = tokens::pod_of(&admin, RELEASE, AGENT, "gone", Some("alpha")).await?;
        let token = tokens::request(&admin, RELEASE, AGENT, Some(tokens::to_pod(&gone))).await?;
        clients.insert("a deleted pod", cluster.client_of("gone", &token).await?);
        let pods = Api::<Pod>::namespaced(admin.clone(), RELEASE);
        pods.delete("gone", &DeleteParams::default().grace_period(0)).await?;
        let world = Self { cluster, chart, clients, uids };
        world.add_targets().await?;
        Ok(world)
    }

    /// Creates the objects that attempts target.
    async fn add_targets(&self) -> Result<()> {
        let admin = self.cluster.client();
        let mut event = event(about_node("alpha"));
        event["metadata"] = json!({"name": "anothers", "namespace": "default"});
        let set = json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": AGENT},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "main", "image": "pause:latest"}]},
                },
            },
        });
        let sets = format!("/apis/apps/v1/namespaces/{RELEASE}/daemonsets");
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases");
        for call in [create(EVENTS, event), create(sets, set), create(leases, lease("another"))] {
            ensure!(send(&admin, &call).await?.0 == Yes, "{call:?}");
        }
        Ok(())
    }

    /// Restores the state before an attempt.
    async fn reset(&self, attempt: &Attempt) -> Result<()> {
        let admin = self.cluster.client();
        for name in ["alpha", "beta"] {
            let (path, none) = (at(V1ALPHA2, name), json!({"metadata": {"finalizers": null}}));
            send(&admin, &merge(&path, none)).await?;
            send(&admin, &delete(&path)).await?;
            if !attempt.at_first {
                let mut object = topology("v1alpha2", name, json!({}));
                // Required, or any change of it in v1alpha1 is invalid.
                object["topologyPolicies"] = json!(["None"]);
                let made = create(V1ALPHA2, object);
                ensure!(send(&admin, &made).await?.0 == Yes, "{name} cannot be created again");
            }
        }
        Ok(())
    }

    /// Restores the pods before an attempt.
    async fn reset_pods(&self) -> Result<()> {
        let admin = self.cluster.client();
        let none = json!({
            "metadata": {
                "annotations": {OBSERVED: null, "a": null},
                "labels": {"a": null},
                "finalizers": null,
                "ownerReferences": null,
            },
            "status": {"phase": "Pending", "podIP": null, "podIPs": null},
        });
        for pod in [&format!("{AGENT}-on-alpha"), &format!("{AGENT}-on-beta"), "pending"] {
            let path = format!("/api/v1/namespaces/{RELEASE}/pods/{pod}/status");
            let (found, message) = send(&admin, &merge(path, none.clone())).await?;
            ensure!(found == Yes, "{message}");
        }
        Ok(())
    }

    /// Replaces the object of `alpha`.
    async fn reset_to(&self, object: Option<&Value>) -> Result<()> {
        let admin = self.cluster.client();
        send(&admin, &delete(at(V1ALPHA2, "alpha"))).await?;
        if let Some(object) = object {
            let (found, message) = send(&admin, &create(V1ALPHA2, object.clone())).await?;
            ensure!(found == Yes, "{message}");
        }
        Ok(())
    }

    /// Waits until the policy allows the agent `max` zones, which identifies the policy.
    async fn wait_until_zones_are_accepted(&self, max: usize) -> Result<()> {
        let mut object = topology("v1alpha2", "alpha", json!({}));
        object["zones"] = json!(zones(max + 1));
        let call = apply(&at(V1ALPHA2, "alpha"), object);
        until(&format!("{max} zones are accepted"), async || {
            let (found, message) = send(&self.clients["agent"], &call).await?;
            ensure!(found == Policy && message.contains(&format!("agents may write {max}:")), "{message}");
            Ok(())
        })
        .await
    }

    async fn attempt(&self, attempt: &Attempt) -> Result<(Outcome, String)> {
        self.reset(attempt).await?;
        let client = self.clients.get(attempt.who).with_context(|| attempt.who)?;
        let mut call = attempt.call.clone();
        if call.method == "PUT" {
            let now = send(&self.cluster.client(), &get(&call.path)).await?.1;
            let now: Value = serde_json::from_str(&now)?;
            call.body["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
        }
        send(client, &call).await
    }

    /// Waits until an agent's write of another node's object, its Event about another Node and a label set by
    /// the controller get this result: RBAC rules and policies take a moment to come into force.
    async fn wait_until_foreign_writes_are(&self, expected: Outcome) -> Result<()> {
        let write = apply(&at(V1ALPHA2, "beta"), topology("v1alpha2", "beta", json!({})));
        // A different value each time: the policy allows a no-op write.
        let label = || {
            let labels = json!({"a": fastrand::u64(..).to_string()});
            merge(at(V1ALPHA2, "beta"), json!({"metadata": {"labels": labels}}))
        };
        let event = create(EVENTS, event(about_node("beta")));
        // Creates the object that gets the label.
        send(&self.cluster.client(), &write).await?;
        self.wait_for_outcome("agent", || write.clone(), expected).await?;
        self.wait_for_outcome("agent", || event.clone(), expected).await?;
        self.wait_for_outcome("controller", label, expected).await
    }

    /// Waits until the policy for pods is in force.
    async fn wait_until_pods_are_covered(&self) -> Result<()> {
        let path = format!("/api/v1/namespaces/{RELEASE}/pods/{AGENT}-on-beta/status");
        let label = || merge(&path, json!({"metadata": {"labels": {"a": fastrand::u64(..).to_string()}}}));
        self.wait_for_outcome("agent", label, Policy).await
    }

    /// Repeats the call until it gets this result.
    async fn wait_for_outcome(&self, who: &str, call: impl Fn() -> Call, expected: Outcome) -> Result<()> {
        let client = self.clients.get(who).with_context(|| who.to_owned())?;
        until(&format!("the outcome of {} of the {who} is {expected:?}", call().path), async || {
            let (found, message) = send(client, &call()).await?;
            ensure!(found == expected, "{found:?}: {message}");
            Ok(())
        })
        .await
    }

    /// Grants the agents and the controller every permission in RBAC, or revokes it, and waits until it is in
    /// force.
    async fn all_rights(&self, granted: bool) -> Result<()> {
        let bindings = Api::<ClusterRoleBinding>::all(self.cluster.client());
        if granted {
            let subject = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": RELEASE});
            let binding: ClusterRoleBinding = serde_json::from_value(json!({
                "metadata": {"name": "everything"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [subject(AGENT), subject(CONTROLLER)],
            }))?;
            bindings.create(&PostParams::default(), &binding).await?;
        } else {
            bindings.delete("everything", &DeleteParams::default()).await?;
        }
        let agent = self.clients.get("agent").context("there is no agent")?;
        until("the agent's rights have changed", async || {
            let (found, message) = send(agent, &get("/api/v1/nodes")).await?;
            ensure!((found == Yes) == granted, "{message}");
            Ok(())
        })
        .await
    }
}

/// Makes a call; returns the result and the message.
async fn send(client: &Client, call: &Call) -> Result<(Outcome, String)> {
    let mut request = Request::builder().method(call.method).uri(&call.path);
    request = request.header("Content-Type", call.content_type);
    if let Some(user) = call.acting_as {
        request = request.header("Impersonate-User", user);
    }
    let body = if call.body.is_null() { Vec::new() } else { serde_json::to_vec(&call.body)? };
    match client.request_text(request.body(body)?).await {
        Ok(text) => Ok((Yes, text)),
        Err(kube::Error::Api(status)) => {
            let outcome = match status.code {
                403 if status.message.contains("ValidatingAdmissionPolicy") => Policy,
                403 if status.message.contains(" cannot ") => Rights,
                code => Code(code),
            };
            Ok((outcome, status.message.clone()))
        }
        Err(error) => Err(error.into()),
    }
}

fn all_attempts(uids: &BTreeMap<&str, String>) -> Vec<Attempt> {
    let agents = [of_topologies(uids), of_content(), of_events(), of_the_rest(), of_other_tokens()];
    agents.into_iter().flatten().chain(of_the_controller()).chain(of_the_purge()).collect()
}

/// Returns the table of docs/internals/attempts.md.
fn table(attempts: &[Attempt]) -> String {
    let mut table =
        "| token of | attempt | allowed | without the policies | with the policies and every permission |\n\
                     |---|---|---|---|---|\n"
            .to_owned();
    for Attempt { who, what, outcome, bare, free, .. } in attempts {
        let free = free.map_or_else(|| "-".to_owned(), |free| free.to_string());
        let bold = if outcome == bare { "" } else { "**" };
        let _ = writeln!(table, "| {who} | {what} | {outcome} | {bold}{bare}{bold} | {free} |");
    }
    table
}

fn check_document(file: &str, name: &str, right: &str) -> Result<()> {
    document::section(file, name, right, "--test real security")
}

#[tokio::test]
async fn a_stolen_token_writes_nothing_else() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    let attempts = all_attempts(&world.uids);
    let mut wrong = Vec::new();
    let mut note = |attempt: &Attempt, when: &str, expected: Outcome, found: (Outcome, String)| {
        if found.0 != expected {
            let Attempt { who, what, .. } = attempt;
            wrong.push(format!("{who}: {what}, {when}: {expected}, but: {}: {}", found.0, found.1));
        }
    };

    // Before the policies are installed: what RBAC alone permits.
    world.wait_until_foreign_writes_are(Yes).await?;
    for attempt in attempts.iter().filter(|attempt| attempt.free.is_some()) {
        note(attempt, "without the policies", attempt.bare, world.attempt(attempt).await?);
    }
    world.chart.install(&world.cluster.client(), &POLICIES).await?;
    world.wait_until_foreign_writes_are(Policy).await?;
    world.all_rights(true).await?;
    for attempt in &attempts {
        if let Some(free) = attempt.free {
            note(attempt, "with every right", free, world.attempt(attempt).await?);
        }
    }
    world.all_rights(false).await?;
    for attempt in &attempts {
        let found = world.attempt(attempt).await?;
        ensure!(found.1.contains(attempt.because), "{}: {}", attempt.what, found.1);
        note(attempt, "as it is", attempt.outcome, found);
    }
    ensure!(wrong.is_empty(), "{} outcomes differ:\n{}", wrong.len(), wrong.join("\n"));
    check_document("docs/internals/attempts.md", "attempts", &table(&attempts))
}

#[tokio::test]
async fn a_stolen_token_annotates_the_pods_of_its_node_and_changes_nothing_else_of_any_pod() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let nudge = json!({"config": {"nudge": "auto"}});
    let world =
        World::start_with(&parts, json!({"config": {"consumer": "kai"}, "controller": nudge})).await?;
    let attempts = of_pods();
    let mut wrong = Vec::new();
    world.wait_until_foreign_writes_are(Yes).await?;
    for when in ["without the policies", "with every right", "as it is"] {
        match when {
            "with every right" => {
                world.chart.install(&world.cluster.client(), &POLICIES).await?;
                world.wait_until_foreign_writes_are(Policy).await?;
                world.wait_until_pods_are_covered().await?;
                world.all_rights(true).await?;
            }
            "as it is" => world.all_rights(false).await?,
            _ => {}
        }
        for attempt in &attempts {
            let expected = match when {
                "without the policies" => attempt.bare,
                "with every right" => attempt.free.unwrap_or(attempt.outcome),
                _ => attempt.outcome,
            };
            world.reset_pods().await?;
            let client = world.clients.get(attempt.who).with_context(|| attempt.who)?;
            let (found, message) = send(client, &attempt.call).await?;
            if found != expected {
                wrong.push(format!(
                    "{}: {}, {when}: {expected}, but: {found}: {message}",
                    attempt.who, attempt.what
                ));
            }
        }
    }
    let pods = Api::<Pod>::namespaced(world.cluster.client(), RELEASE);
    let spec = pods.get(&format!("{AGENT}-on-alpha")).await?.spec.context("a pod without a spec")?;
    ensure!(spec.containers[0].image.as_deref() != Some("another"), "the image was changed");
    ensure!(wrong.is_empty(), "{} outcomes differ:\n{}", wrong.len(), wrong.join("\n"));
    check_document("docs/internals/attempts.md", "attempts-kai", &table(&attempts))
}

/// Returns an account's rights, one per line: `get nodes`, `get daemonsets.apps/numacast-agent in numacast`.
fn rights_of(chart: &Chart, account: &str) -> Result<BTreeSet<String>> {
    let mut rights = BTreeSet::new();
    for binding in chart.of_kinds(&["ClusterRoleBinding", "RoleBinding"]) {
        let subjects = binding.data["subjects"].as_array().context("a binding without subjects")?;
        if !subjects.iter().any(|subject| subject["name"] == account) {
            continue;
        }
        let of = |key: &str| binding.data["roleRef"][key].as_str().unwrap_or_default();
        let role = chart.object(of("kind"), of("name"))?;
        ensure!(role.metadata.namespace == binding.metadata.namespace, "{:?}", role.metadata);
        let place = role.metadata.namespace.as_ref().map_or_else(String::new, |name| format!(" in {name}"));
        for rule in role.data["rules"].as_array().into_iter().flatten() {
            let of = |key: &str| rule[key].as_array().into_iter().flatten().filter_map(Value::as_str);
            for ((verb, resource), group) in of("verbs").flat_map(|verb| {
                of("resources")
                    .flat_map(move |resource| of("apiGroups").map(move |group| ((verb, resource), group)))
            }) {
                let group = if group.is_empty() { String::new() } else { format!(".{group}") };
                let names: Vec<&str> = of("resourceNames").collect();
                let names = if names.is_empty() { String::new() } else { format!("/{}", names.join(",")) };
                rights.insert(format!("{verb} {resource}{group}{names}{place}"));
            }
        }
    }
    Ok(rights)
}

fn set(rights: &[&str]) -> BTreeSet<String> {
    rights.iter().map(|right| (*right).to_owned()).collect()
}

/// The rights of every agent.
const BASE: [&str; 4] = [
    "create noderesourcetopologies.topology.node.k8s.io",
    "get noderesourcetopologies.topology.node.k8s.io",
    "patch noderesourcetopologies.topology.node.k8s.io",
    "watch noderesourcetopologies.topology.node.k8s.io",
];
const NODES: &str = "get nodes";
const POST: &str = "create events.events.k8s.io in default";
const LIST_PODS: [&str; 2] = ["list pods", "watch pods"];
const ANNOTATE: &str = "patch pods/status";
const CONFIGZ: &str = "get nodes/configz";
const CLAIMS: [&str; 3] = [
    "get resourceclaims.resource.k8s.io",
    "list resourceslices.resource.k8s.io",
    "watch resourceslices.resource.k8s.io",
];
const DEVICES_OF_ALL: &str = "/apis/scheduling.koordinator.sh/v1alpha1/devices";
const DEVICES: &str = "get devices.scheduling.koordinator.sh";
const PODS_PAGE: &str = "get nodes/pods";

#[tokio::test]
async fn every_right_goes_with_its_feature() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let all = [&BASE[..], &[NODES, POST], &LIST_PODS, &[CONFIGZ], &CLAIMS].concat();
    let without = |gone: &[&'static str]| -> Vec<&'static str> {
        all.iter().copied().filter(|right| !gone.contains(right)).collect()
    };
    let pods = |source: &str| json!({"config": {"pods": {"source": source}}});
    let kubelet = |source: &str| json!({"kubelet": {"configSource": source}});
    let proxy = |proxy: Value| json!({"config": {"proxy": proxy}});
    let pods_api = |source: &str, of_agent: &str| {
        json!({"config": {
            "podsApi": {"enabled": true, "source": source},
            "pods": {"source": of_agent},
            "fingerprint": {"view": if of_agent == "none" { "none" } else { "scheduler" }},
        }})
    };
    let serving = |of: Value| {
        let mut config = json!({"publish": {"to": "none"}});
        for (key, value) in of.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let off = json!({"enabled": false});
        json!({"config": config, "controller": off, "purge": off, "crds": off})
    };
    let pods_of = |source: &str| json!({"enabled": true, "source": source});
    for (values, expected) in [
        (json!({}), all.clone()),
        (serving(json!({"proxy": {"enabled": true}})), [&[NODES, DEVICES][..], &LIST_PODS].concat()),
        (serving(json!({"proxy": {"enabled": true, "annotations": {"koordinator": []}}})), vec![]),
        (
            serving(json!({"proxy": {"enabled": true, "annotations": {
                "koordinator": [], "mappings": [{"annotation": "a.example/b", "resource": "a.example/b"}],
            }}})),
            [&[NODES][..], &LIST_PODS].concat(),
        ),
        (serving(json!({"podsApi": pods_of("auto")})), LIST_PODS.to_vec()),
        (serving(json!({"podsApi": pods_of("apiServer")})), LIST_PODS.to_vec()),
        (serving(json!({"podsApi": pods_of("podsApi")})), vec![]),
        (serving(json!({"podsApi": pods_of("kubelet")})), vec![NODES, PODS_PAGE]),
        (
            serving(json!({"podsApi": pods_of("podsApi"), "proxy": {"enabled": true}})),
            [&[NODES, DEVICES][..], &LIST_PODS].concat(),
        ),
        (
            json!({
                "config": {"publish": {"to": "/var/run/numacast/topology.yaml"}},
                "controller": {"enabled": false}, "purge": {"enabled": false},
            }),
            without(&BASE),
        ),
        (json!({"config": {"publish": {"events": false}}}), without(&[POST])),
        (json!({"config": {"publish": {"ownerReference": false}}}), all.clone()),
        (pods("apiServer"), all.clone()),
        (pods("podsApi"), without(&LIST_PODS)),
        (pods("kubelet"), [&without(&LIST_PODS)[..], &[PODS_PAGE]].concat()),
        (pods("none"), without(&LIST_PODS)),
        (json!({"config": {"fingerprint": {"view": "kubelet"}}}), all.clone()),
        (
            json!({"config": {"consumer": "kai", "pods": {"source": "auto"}}}),
            [&all[..], &[ANNOTATE]].concat(),
        ),
        (json!({"config": {"consumer": "kaiDirect", "pods": {"source": "auto"}}}), all.clone()),
        (json!({"config": {"consumer": "none"}}), all.clone()),
        (json!({"config": {"dra": {"source": "off"}}}), without(&CLAIMS)),
        (json!({"config": {"dra": {"source": false}}}), without(&CLAIMS)),
        (
            json!({"config": {"consumer": "none", "pods": {"source": "auto"}}}),
            [&all[..], &[PODS_PAGE]].concat(),
        ),
        (
            json!({"config": {"fingerprint": {"view": "none"}, "pods": {"source": "none"}}}),
            without(&LIST_PODS),
        ),
        (proxy(json!({"enabled": true})), [&all[..], &[DEVICES]].concat()),
        (proxy(json!({"enabled": true, "annotations": {"koordinator": []}})), all.clone()),
        (proxy(json!({"enabled": false, "annotations": {"koordinator": ["devices"]}})), all.clone()),
        (pods_api("auto", "none"), all.clone()),
        (pods_api("apiServer", "none"), all.clone()),
        (pods_api("podsApi", "none"), without(&LIST_PODS)),
        (pods_api("kubelet", "none"), [&without(&LIST_PODS)[..], &[PODS_PAGE]].concat()),
        (pods_api("kubelet", "apiServer"), [&all[..], &[PODS_PAGE]].concat()),
        (json!({"config": {"podsApi": {"source": "kubelet"}}}), all.clone()),
        (kubelet("configz"), all.clone()),
        (kubelet("auto"), all.clone()),
        (kubelet("none"), without(&[CONFIGZ])),
        (json!({"kubelet": {"configFile": "/var/lib/kubelet/config.yaml"}}), without(&[CONFIGZ])),
        (
            json!({
                "kubelet": {"configFile": "/var/lib/kubelet/config.yaml"},
                "config": {
                    "publish": {"events": false, "ownerReference": false},
                    "pods": {"source": "none"},
                    "dra": {"source": "off"},
                },
            }),
            BASE.to_vec(),
        ),
    ] {
        let found = rights_of(&Chart::render(&parts, &values)?, AGENT)?;
        ensure!(found == set(&expected), "{values}: {found:#?}");
    }

    let whole = [
        "get noderesourcetopologies.topology.node.k8s.io",
        "list noderesourcetopologies.topology.node.k8s.io",
        "delete noderesourcetopologies.topology.node.k8s.io",
        "watch noderesourcetopologies.topology.node.k8s.io",
        "patch noderesourcetopologies.topology.node.k8s.io",
        "list pods",
        "watch pods",
        "get nodes",
        "list nodes",
        "watch nodes",
        "get daemonsets.apps/numacast-agent in numacast",
        "list pods in numacast",
        "watch pods in numacast",
        "get leases.coordination.k8s.io/numacast-controller in numacast",
        "update leases.coordination.k8s.io/numacast-controller in numacast",
        "create leases.coordination.k8s.io in numacast",
        POST,
    ];
    for (config, gone) in [
        (json!({}), &whole[..0]),
        (json!({"nudge": "off"}), &whole[3..7]),
        (json!({"nudge": false}), &whole[3..7]),
        (json!({"nudge": "5s"}), &whole[..0]),
        (json!({"daemonSets": []}), &whole[10..13]),
        (json!({"lease": ""}), &whole[13..16]),
        (json!({"daemonSets": [], "lease": ""}), &whole[10..16]),
        (json!({"publish": {"events": false}}), &whole[16..]),
    ] {
        let found = rights_of(
            &Chart::render(&parts, &json!({"controller": {"config": config, "replicaCount": 1}}))?,
            CONTROLLER,
        )?;
        let expected: Vec<&str> = whole.into_iter().filter(|right| !gone.contains(right)).collect();
        ensure!(found == set(&expected), "{config}: {found:#?}");
    }
    // Nudges are for schedulers that read the objects periodically; for others they are off unless
    // configured.
    for (values, gone) in [
        (json!({"config": {"consumer": "kai"}}), &whole[3..7]),
        (json!({"config": {"consumer": "kaiDirect"}}), &whole[3..7]),
        (json!({"config": {"consumer": "none"}}), &whole[3..7]),
        (json!({"config": {"consumer": "schedulerPluginsDirect"}}), &whole[3..7]),
        (json!({"config": {"consumer": "schedulerPlugins"}}), &whole[..0]),
        (
            json!({
                "config": {"consumer": "schedulerPluginsDirect"},
                "controller": {"config": {"nudge": "auto"}},
            }),
            &whole[..0],
        ),
        (json!({"controller": {"extraArgs": ["--dry-run"]}}), &whole[2..7]),
    ] {
        let found = rights_of(&Chart::render(&parts, &values)?, CONTROLLER)?;
        let expected: Vec<&str> = whole.into_iter().filter(|right| !gone.contains(right)).collect();
        ensure!(found == set(&expected), "{values}: {found:#?}");
    }
    let of_ui = [
        "get pods",
        "list daemonsets.apps",
        "get resourceclaims.resource.k8s.io",
        "create tokenreviews.authentication.k8s.io",
        "create subjectaccessreviews.authorization.k8s.io",
    ];
    let ui = json!({"secretName": "ui"});
    let found = rights_of(&Chart::render(&parts, &json!({"controller": {"ui": ui}}))?, CONTROLLER)?;
    ensure!(found == set(&[&whole[..], &of_ui].concat()), "{found:#?}");
    let values = json!({"controller": {"ui": ui, "config": {"nudge": "off"}}});
    let found = rights_of(&Chart::render(&parts, &values)?, CONTROLLER)?;
    let expected: Vec<&str> =
        whole.into_iter().filter(|right| !right.starts_with("patch ")).chain(of_ui).collect();
    ensure!(found == set(&expected), "{found:#?}");
    for (values, more) in [
        (json!({"scheduler": {"enabled": true}}), &["create pods/eviction in numacast"][..]),
        (
            json!({"scheduler": {"enabled": true}, "controller": {"config": {"nudge": "off"}}}),
            &["create pods/eviction in numacast"],
        ),
        (json!({"scheduler": {"enabled": true}, "config": {"consumer": "schedulerPluginsDirect"}}), &[]),
        (json!({"scheduler": {"enabled": true}, "controller": {"extraArgs": ["--dry-run"]}}), &[]),
    ] {
        let found = rights_of(&Chart::render(&parts, &values)?, CONTROLLER)?;
        let eviction: Vec<&str> =
            found.iter().map(String::as_str).filter(|right| right.contains("eviction")).collect();
        ensure!(eviction == more, "{values}: {found:#?}");
    }
    let none =
        Chart::render(&parts, &json!({"controller": {"enabled": false}, "purge": {"enabled": false}}))?;
    ensure!(rights_of(&none, CONTROLLER)?.is_empty() && rights_of(&none, PURGE)?.is_empty());
    // Regardless of the controller's configuration, the hook deletes what the release created.
    let other = json!({"controller": {"config": {"daemonSets": ["another"]}}});
    let purge = rights_of(&Chart::render(&parts, &other)?, PURGE)?;
    let expected = [
        "list noderesourcetopologies.topology.node.k8s.io",
        "delete noderesourcetopologies.topology.node.k8s.io",
        "list nodes",
        "get daemonsets.apps/numacast-agent in numacast",
        "delete daemonsets.apps/numacast-agent in numacast",
        "list pods in numacast",
    ];
    ensure!(purge == set(&expected), "{purge:#?}");
    let default = Chart::render(&parts, &json!({}))?;
    let check = rights_of(&default, CHECK)?;
    ensure!(check.iter().all(|right| right.starts_with("get ") || right.starts_with("list ")), "{check:#?}");
    let mut list = "| account | may |\n|---|---|\n".to_owned();
    for account in [AGENT, CONTROLLER, PURGE, CHECK] {
        for right in rights_of(&default, account)? {
            writeln!(list, "| `{account}` | {right} |")?;
        }
    }
    check_document("docs/internals/permissions.md", "rights", &list)?;
    let without = Chart::render(&parts, &json!({"rbac": {"create": false}, "purge": {"enabled": false}}))?;
    ensure!(without.of_kinds(&RIGHTS[1..]).next().is_none(), "rights are created");
    Ok(())
}

/// If the API server issues tokens without a node claim, an administrator may choose to trust agents anyway:
/// a token without a node may then write any node's object, but nothing else that the policies deny.
#[tokio::test]
async fn a_missing_claim_may_be_allowed() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    let lenient = Chart::render(&parts, &json!({"admissionPolicy": {"onMissingClaim": "Allow"}}))?;
    lenient.install(&world.cluster.client(), &POLICIES).await?;
    world.wait_until_foreign_writes_are(Policy).await?;
    world.all_rights(true).await?;
    let who = "no pod";
    let own = at(V1ALPHA2, "alpha");
    let foreign = json!([{"apiVersion": "v1", "kind": "Node", "name": "beta", "uid": world.uids["beta"]}]);
    let metadata = |key: &str, value: Value| merge(&own, json!({"metadata": {key: value}}));
    for (what, call, expected) in [
        ("write", merge(&own, json!({"attributes": []})), Yes),
        ("event", create(EVENTS, event(about_node("alpha"))), Yes),
        ("delete", delete(&own), Policy),
        ("own", metadata("ownerReferences", foreign), Policy),
        ("stay", metadata("finalizers", json!(["example.com/stay"])), Policy),
        (
            "event about a pod",
            create(
                EVENTS,
                event(json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "default"})),
            ),
            Policy,
        ),
    ] {
        let (found, message) = world.attempt(&plain(who, what, call, expected)).await?;
        ensure!(found == expected, "{what}: {found}: {message}");
    }
    Ok(())
}

/// An owner or a finalizer set by another client does not make the policy deny the agent's other changes.
#[tokio::test]
async fn leftovers_of_others_do_not_deny_the_agents_writes() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    world.chart.install(&world.cluster.client(), &POLICIES).await?;
    world.wait_until_foreign_writes_are(Policy).await?;
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "left-by-nfd"});
    let left = json!({"metadata": {
        "ownerReferences": [owner.clone()],
        "finalizers": ["example.com/stay"],
        "annotations": {"numacast.io/keep": "true", FINGERPRINT_ANNOTATION: "pfp0v001ef46db3751d8e999"},
        "labels": {"team": "hpc"},
    }});
    let own = at(V1ALPHA2, "alpha");
    let admin = world.cluster.client();
    let agent = &world.clients["agent"];
    let new = topology("v1alpha2", "alpha", json!({}));
    ensure!(send(&admin, &create(V1ALPHA2, new.clone())).await?.0 == Yes);
    ensure!(send(&admin, &merge(&own, left)).await?.0 == Yes);
    let mine = json!({"apiVersion": "v1", "kind": "Node", "name": "alpha", "uid": world.uids["alpha"]});
    let ours = topology("v1alpha2", "alpha", json!({"ownerReferences": [mine]}));
    for call in [apply(&own, ours), merge(&own, json!({"metadata": {"ownerReferences": [mine.clone()]}}))] {
        let (found, message) = send(agent, &call).await?;
        ensure!(found == Yes, "{message}");
    }
    let metadata = |key: &str, value: Value| merge(&own, json!({"metadata": {key: value}}));
    for (call, expected) in [
        (metadata("annotations", json!({FINGERPRINT_ANNOTATION: null})), Yes),
        (metadata("annotations", json!({"numacast.io/keep": null})), Policy),
        (metadata("labels", json!({"team": null})), Policy),
        (metadata("finalizers", json!([])), Policy),
    ] {
        let (found, message) = send(agent, &call).await?;
        ensure!(found == expected, "{}: {found}: {message}", call.body);
    }
    let stays = json!({"metadata": {"ownerReferences": [mine, owner]}});
    let (found, message) = send(agent, &merge(&own, stays)).await?;
    ensure!(found == Policy, "a removed owner came back: {message}");
    Ok(())
}

/// The policy's rules follow the agents' configuration.
#[tokio::test]
async fn the_policy_follows_the_configuration() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let world = World::start(&parts).await?;
    let new = || topology("v1alpha2", "alpha", json!({}));
    let with = |key: &str, value: Value| {
        let mut object = new();
        object[key] = value;
        object
    };
    let without_metadata = || {
        let mut object = full("alpha");
        object["attributes"].as_array_mut().map(Vec::pop);
        object
    };
    let old = |annotation: &str, policies: Value| {
        let mut object =
            topology("v1alpha1", "alpha", json!({"annotations": {FINGERPRINT_ANNOTATION: annotation}}));
        object["topologyPolicies"] = policies;
        object
    };
    let sparse = |ids: [usize; 2]| {
        let mut sparse: Vec<Value> = ids.iter().map(|id| zones(9)[*id].clone()).collect();
        let costs: Vec<Value> = ids.iter().map(|id| zones(9)[0]["costs"][*id].clone()).collect();
        sparse.iter_mut().for_each(|zone| zone["costs"] = json!(costs));
        with("zones", json!(sparse))
    };
    let fingerprint = "pfp0v001ef46db3751d8e999";
    let policies = |names: Value| with("topologyPolicies", names);
    type Case = (&'static str, Option<Value>, Value, Outcome);
    let of_placement = |outcome: Outcome| -> Vec<Case> {
        vec![
            ("placements", None, full("alpha"), outcome),
            ("a vector alone", None, without_metadata(), outcome),
            ("agents that are not replaced yet", Some(full("alpha")), full("alpha"), Yes),
            ("none", None, new(), Yes),
        ]
    };
    let of_policies = vec![
        ("a name of NFD's", None, policies(json!(["RestrictedPodLevel"])), Yes),
        ("none", None, policies(json!([])), Yes),
        ("another name", None, policies(json!(["Restricted"])), Policy),
        ("two names", None, policies(json!(["None", "RestrictedPodLevel"])), Policy),
    ];
    let of_v1alpha1 = vec![
        ("v1alpha1", None, old(fingerprint, json!(["SingleNUMANodePodLevel"])), Yes),
        ("no policies", None, old(fingerprint, json!([])), Yes),
        ("another name", None, old(fingerprint, json!(["single-numa-node"])), Policy),
        ("a malformed fingerprint", None, old("x", json!(["None"])), Policy),
    ];
    let of_sparse = vec![
        ("sparse ids", None, sparse([0, 8]), Yes),
        ("no order", None, sparse([8, 0]), Policy),
        ("a zone twice", None, sparse([8, 8]), Policy),
    ];
    let of_many = vec![("64 zones", None, with("zones", json!(zones(64))), Yes)];
    for (max, config, cases) in [
        (8, json!({"consumer": "kai"}), of_placement(Policy)),
        (9, json!({"consumer": "kaiDirect"}), of_placement(Policy)),
        (10, json!({"consumer": "none"}), of_placement(Policy)),
        (11, json!({"consumer": "schedulerPluginsDirect"}), of_placement(Policy)),
        (12, json!({"consumer": "schedulerPlugins"}), of_placement(Yes)),
        (14, json!({"publish": {"topologyPolicies": true}}), of_policies),
        (15, json!({"publish": {"apiVersion": "v1alpha1"}}), of_v1alpha1),
        (16, json!({"consumer": "kaiDirect"}), of_sparse),
        (64, json!({}), of_many),
    ] {
        let values = json!({"config": config, "admissionPolicy": {"maxZones": max}});
        Chart::render(&parts, &values)?.install(&world.cluster.client(), &POLICIES).await?;
        world.wait_until_zones_are_accepted(max).await?;
        for (what, before, object, expected) in cases {
            world.reset_to(before.as_ref()).await?;
            let version =
                if object["apiVersion"] == "topology.node.k8s.io/v1alpha1" { V1ALPHA1 } else { V1ALPHA2 };
            let (found, message) =
                send(&world.clients["agent"], &apply(&at(version, "alpha"), object)).await?;
            ensure!(found == expected, "{config}: {what}: {found}: {message}");
        }
    }
    Ok(())
}
