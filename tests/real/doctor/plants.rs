//! The planted faults: scripts with the functions of `world`.

const CRD: &str = "noderesourcetopologies.topology.node.k8s.io";

/// One fault.
pub(super) struct Plant {
    /// The check that finds it.
    pub(super) check: &'static str,
    /// Where it is found.
    pub(super) place: &'static str,
    /// Plants it.
    pub(super) plant: String,
    /// Whether a command is printed that mends it.
    pub(super) has_command: bool,
    /// Done after that command: what controllers, kubelets and agents would do.
    pub(super) follow_up: &'static str,
    /// Brings everything back that neither the command nor the follow-up does.
    pub(super) restore: String,
    /// Other checks that may find something, too.
    pub(super) also: &'static [&'static str],
    /// What the finding has to say.
    pub(super) order: &'static str,
}

/// A fault that no command mends.
fn plant(check: &'static str, place: &'static str, plant: &str, restore: &str) -> Plant {
    let (plant, restore) = (plant.to_owned(), restore.to_owned());
    Plant { check, place, plant, has_command: false, follow_up: "", restore, also: &[], order: "" }
}

/// A fault that the printed command mends.
fn mended(check: &'static str, place: &'static str, plant: &str) -> Plant {
    Plant { has_command: true, ..self::plant(check, place, plant, "") }
}

impl Plant {
    fn then(self, follow_up: &'static str) -> Self {
        Self { follow_up, ..self }
    }

    fn restored(self, restore: &str) -> Self {
        Self { restore: restore.to_owned(), ..self }
    }

    fn ordering(self, order: &'static str) -> Self {
        Self { order, ..self }
    }

    fn with(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }
}

pub(super) fn plants() -> Vec<Plant> {
    [crd(), policies(), agents(), objects(), rivals(), kubelets(), schedulers(), controllers()]
        .into_iter()
        .flatten()
        .collect()
}

const CRD_PLACE: &str = "CustomResourceDefinition noderesourcetopologies.topology.node.k8s.io";

fn crd() -> Vec<Plant> {
    // In the CRD's file, v1alpha1 comes first.
    let patch = |patch: &str| format!("quietly kubectl patch crd {CRD} --type json --patch '{patch}'");
    let status = r#"{"status": {"storedVersions": ["v1alpha1", "v1alpha2"]}}"#;
    let stored =
        format!("quietly kubectl patch crd {CRD} --subresource status --type merge --patch '{status}'");
    let current = r#"{"status": {"storedVersions": ["v1alpha2"]}}"#;
    let current =
        format!("quietly kubectl patch crd {CRD} --subresource status --type merge --patch '{current}'");
    let storage = r#"[{"op": "replace", "path": "/spec/versions/0/storage", "value": true},
                      {"op": "replace", "path": "/spec/versions/1/storage", "value": false}]"#;
    let without =
        r#"[{"op": "remove", "path": "/spec/versions/1/schema/openAPIV3Schema/properties/attributes"}]"#;
    let unserved = r#"[{"op": "replace", "path": "/spec/versions/1/served", "value": false}]"#;
    let publish = "for node in worker-0 worker-1 worker-2; do republish $node; done";
    vec![
        mended("CrdMissing", CRD_PLACE, &format!("quietly kubectl delete crd {CRD}"))
            .restored(&format!("kubectl wait --for condition=Established crd {CRD}\n{publish}")),
        mended("CrdVersionNotServed", CRD_PLACE, &patch(unserved)).with(&["ObjectWithoutPolicies"]),
        mended("CrdSchemaOld", CRD_PLACE, &patch(without)).with(&["ObjectWithoutPolicies"]),
        mended("CrdStorageVersion", CRD_PLACE, &patch(storage)).restored(&current),
        mended("CrdStoredVersions", CRD_PLACE, &stored),
    ]
}

fn policies() -> Vec<Plant> {
    let policy = "ValidatingAdmissionPolicy numacast-agent";
    let warning = r#"[{"fieldRef": "spec.validations[0].expression", "warning": "undefined field"}]"#;
    let warn = |warnings: &str| {
        let status = format!(r#"{{"status": {{"typeChecking": {{"expressionWarnings": {warnings}}}}}}}"#);
        format!(
            "quietly kubectl patch validatingadmissionpolicy numacast-agent --subresource status --type merge --patch '{status}'"
        )
    };
    let helm = "quietly helm upgrade numacast charts/numacast --namespace numacast --reuse-values";
    vec![
        plant(
            "PolicyMissing",
            "DaemonSet numacast/numacast-agent",
            "quietly kubectl delete validatingadmissionpolicy numacast-agent",
            helm,
        ),
        mended(
            "PolicyNotBound",
            policy,
            "quietly kubectl delete validatingadmissionpolicybinding numacast-agent",
        ),
        mended(
            "PolicyNotDenied",
            "ValidatingAdmissionPolicyBinding numacast-agent",
            r#"quietly kubectl patch validatingadmissionpolicybinding numacast-agent --type merge --patch '{"spec": {"validationActions": ["Audit"]}}'"#,
        ),
        mended(
            "PolicyFailureIgnored",
            policy,
            r#"quietly kubectl patch validatingadmissionpolicy numacast-agent --type merge --patch '{"spec": {"failurePolicy": "Ignore"}}'"#,
        ),
        plant("PolicyTypeWarning", policy, &warn(warning), &warn("null")),
    ]
}

fn agents() -> Vec<Plant> {
    let helm = "quietly helm upgrade numacast charts/numacast --namespace numacast --reuse-values";
    let selector = |value: &str| {
        let patch = format!(r#"{{"spec": {{"template": {{"spec": {{"nodeSelector": {value}}}}}}}}}"#);
        format!("quietly kubectl patch daemonset numacast-agent --namespace numacast --patch '{patch}'")
    };
    let container = |fields: &str| {
        let status = format!(
            r#"{{"status": {{"containerStatuses": [{{"name": "agent", "image": "x", "ready": true, {fields}}}]}}}}"#
        );
        format!("status agent-worker-1 '{status}'")
    };
    let ended = |reason: &str, at: &str| {
        format!(
            r#""imageID": "", "restartCount": 5, "state": {{"running": {{"startedAt": "2026-01-01T00:00:00Z"}}}},
               "lastState": {{"terminated": {{"reason": "{reason}", "exitCode": 1, "finishedAt": "{at}"}}}}"#
        )
    };
    let other_digest = r#""imageID": "numacast@sha256:2", "restartCount": 0, "state": {"running": {}}"#;
    let twice = "sed 's/\"name\":\"agent-worker-1\"/\"name\":\"agent-twice\"/' $DIR/agent-worker-1.json > $DIR/agent-twice.json
                 cp $DIR/agent-worker-1-status.json $DIR/agent-twice-status.json
                 start agent-twice";
    vec![
        plant(
            "AgentsMissing",
            "the cluster",
            "quietly kubectl delete daemonset numacast-agent --namespace numacast",
            helm,
        ),
        plant(
            "AgentsCoverNoNode",
            "DaemonSet numacast/numacast-agent",
            &selector(r#"{"no": "node"}"#),
            &selector("null"),
        ),
        plant("AgentMissing", "Node worker-1", "stop agent-worker-1", "start agent-worker-1")
            .with(&["FingerprintDiffers"]),
        plant(
            "AgentNotReady",
            "Node worker-1",
            r#"status agent-worker-1 '{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}'"#,
            "restart agent-worker-1",
        ),
        plant("AgentTwice", "Node worker-1", twice, "stop agent-twice").with(&["FingerprintDiffers"]),
        mended(
            "AgentOutOfMemory",
            "Pod numacast/agent-worker-1",
            &container(&ended("OOMKilled", "2026-01-01T00:00:00Z")),
        )
        .then("restart agent-worker-1"),
        plant(
            "AgentRestarts",
            "Pod numacast/agent-worker-1",
            &container(&ended("Error", "2090-01-01T00:00:00Z")),
            "restart agent-worker-1",
        ),
        mended("AgentImagesDiffer", "Pod numacast/agent-worker-1", &container(other_digest))
            .then("start agent-worker-1"),
    ]
}

fn objects() -> Vec<Plant> {
    let object = "NodeResourceTopology worker-1";
    let node = |status: &str| {
        format!(
            "quietly kubectl patch node worker-1 --subresource status --type merge --patch '{{\"status\": {status}}}'"
        )
    };
    let fingerprint = |value: &str| {
        format!(
            r#"change worker-1 '[{{"op": "replace", "path": "/attributes/4/value", "value": "{value}"}}]'"#
        )
    };
    let earlier = r#"change worker-1 '[{"op": "replace", "path": "/metadata/ownerReferences/0/uid", "value": "earlier"}]'"#;
    let odd =
        r#"change worker-1 '[{"op": "add", "path": "/zones/-", "value": {"name": "odd", "type": "Node"}}]'"#;
    let high = r#"change worker-1 '[{"op": "replace", "path": "/zones/1/name", "value": "node-64"}]'"#;
    let without = r#"change worker-1 '[{"op": "remove", "path": "/attributes"}]'"#;
    let publish = "publish worker-1";
    vec![
        plant(
            "ObjectMissing",
            "Node worker-1",
            "quietly kubectl delete noderesourcetopology worker-1",
            publish,
        ),
        mended("ObjectWithoutNode", "NodeResourceTopology gone", "publish gone"),
        mended("ObjectUnreadable", object, odd).then(publish),
        plant("ObjectWithoutPolicies", object, without, "republish worker-1"),
        mended("ObjectOfEarlierNode", object, earlier).then(publish),
        mended("ZoneIds", object, high).then(publish),
        plant(
            "ZonesExceedNode",
            object,
            &node(r#"{"capacity": {"cpu": "15"}}"#),
            &node(r#"{"capacity": {"cpu": "16"}}"#),
        ),
        plant(
            "NodeExceedsZones",
            "Node worker-1",
            &node(r#"{"allocatable": {"cpu": "17"}}"#),
            &node(r#"{"allocatable": {"cpu": "14"}}"#),
        ),
        mended("FingerprintDiffers", object, &fingerprint("pfp0v0010000000000000001"))
            .then("start agent-worker-1; republish worker-1"),
        mended("ForeignWriter", object, "publish worker-1 nfd-topology-updater").then(publish),
        plant("ObjectWrittenOften", object, WRITE_OFTEN, "republish worker-1"),
    ]
}

/// Other publishers. What restores the cluster is what the finding orders.
fn rivals() -> Vec<Plant> {
    let object = "NodeResourceTopology worker-1";
    let order = "set `config.agent.nodeResourceTopology: false` in its chart";
    let balloon = r#"change worker-1 '[{"op": "replace", "path": "/zones/0/type", "value": "balloon"},
                      {"op": "replace", "path": "/zones/1/type", "value": "balloon"}]'; owns worker-1 app v1alpha2"#;
    let configured = |value: bool| {
        format!(
            "quietly kubectl patch balloonspolicies default --namespace default --type merge --patch \
             '{{\"spec\": {{\"agent\": {{\"nodeResourceTopology\": {value}}}}}}}'"
        )
    };
    let nri = format!(
        "{NRI_CRD}\n{}\n{}",
        daemon_set("nri", "ghcr.io/containers/nri-plugins/nri-resource-policy-balloons:v0.14", ""),
        r#"until quietly kubectl create --filename - <<'END'
{"apiVersion": "config.nri/v1alpha1", "kind": "BalloonsPolicy", "metadata": {"name": "default", "namespace": "default"}}
END
do sleep 0.1; done"#,
    );
    let gates =
        |gates: &str| daemon_set("koordlet", "koordlet:v1.8", &format!(r#""--feature-gates={gates}""#));
    // Only where agents annotate pods.
    let consumer = |from: &str, to: &str| {
        format!(
            "kubectl get configmap numacast-agent --namespace numacast --output json | sed 's/{from}/{to}/' |
                 quietly kubectl replace --filename -"
        )
    };
    let (before, kai) = (r#""config.yaml": ""#, r#""config.yaml": "consumer: kai\\n"#);
    vec![
        mended(
            "RivalPublisher",
            "DaemonSet default/nfd",
            &daemon_set("nfd", "nfd", r#""nfd-topology-updater""#),
        )
        .ordering("set `topologyUpdater.enable: false` in NFD's chart"),
        plant(
            "RivalPublisher",
            "DaemonSet default/koordlet",
            &gates("AllBeta=true"),
            // The test ends when nothing is found; then the DaemonSet itself is in nobody's way.
            &format!(
                "quietly kubectl delete daemonset koordlet --namespace default; {}",
                gates("NodeTopologyReport=false")
            ),
        )
        .ordering("add `NodeTopologyReport=false` to its --feature-gates"),
        plant("RivalPublisher", "DaemonSet default/nri", &nri, &configured(false)).ordering(order),
        plant(
            "RivalPublisher",
            "DaemonSet default/kai",
            &format!(
                "{}\n{}",
                consumer(before, kai),
                daemon_set("kai", "ghcr.io/kai-scheduler/kai-scheduler/numa-placement-exporter:v0.17.0", "")
            ),
            &format!("quietly kubectl delete daemonset kai --namespace default; {}", consumer(kai, before)),
        )
        .ordering("set `numaPlacementExporter.enabled: false` in KAI's chart"),
        mended("ForeignWriter", object, "publish worker-1 koordinator-manager")
            .then("publish worker-1")
            .ordering("set `enable: false` for these nodes in `colocation-config`"),
        mended("ForeignWriter", object, balloon).then("publish worker-1").ordering(order),
    ]
}

/// Returns the script that creates a DaemonSet of an image, with arguments.
fn daemon_set(name: &str, image: &str, arguments: &str) -> String {
    format!(
        r#"quietly kubectl create --filename - <<'END'
{{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {{"name": "{name}", "namespace": "default"}}, "spec": {{
 "selector": {{"matchLabels": {{"app": "{name}"}}}}, "template": {{"metadata": {{"labels": {{"app": "{name}"}}}}, "spec": {{
 "containers": [{{"name": "main", "image": "{image}", "args": [{arguments}]}}]}}}}}}}}
END"#
    )
}

/// A CRD as nri-plugins' chart of balloons has it, with the default of the switch.
const NRI_CRD: &str = r#"quietly kubectl create --filename - <<'END'
{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "balloonspolicies.config.nri"},
 "spec": {"group": "config.nri", "scope": "Namespaced", "names": {"kind": "BalloonsPolicy", "plural": "balloonspolicies"},
  "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
   "spec": {"type": "object", "default": {}, "properties": {"agent": {"type": "object", "default": {"nodeResourceTopology": true},
    "properties": {"nodeResourceTopology": {"type": "boolean"}}}}}}}}}]}}
END"#;

/// Writes an object 120 times with a few requests per second at least.
const WRITE_OFTEN: &str = r#"republish worker-1
    kubectl get noderesourcetopology worker-1 --output json > $DIR/often.json
    i=0; while [ $i -lt 60 ]; do
        sed 's/"value": 20/"value": 21/; /resourceVersion/d' $DIR/often.json
        sed '/resourceVersion/d' $DIR/often.json
        i=$((i + 1))
    done | quietly kubectl replace --field-manager numacast --filename -"#;

fn kubelets() -> Vec<Plant> {
    let object = "NodeResourceTopology worker-1";
    let set = |index: usize, value: &str| {
        format!(
            r#"change worker-1 '[{{"op": "replace", "path": "/attributes/{index}/value", "value": "{value}"}}]'"#
        )
    };
    let publish = "republish worker-1";
    vec![
        plant("CpuManagerNotStatic", object, &set(2, "none"), publish).with(&["PoolDiffers"]),
        plant("MemoryManagerNotStatic", object, &set(3, "None"), publish).with(&["PoolDiffers"]),
        plant(
            "OptionWithoutEffect",
            "NodeResourceTopology worker-0",
            "for node in worker-0 worker-1 worker-2; do attribute $node topologyManagerOptionPreferClosestNumaNodes true; done",
            "for node in worker-0 worker-1 worker-2; do republish $node; done",
        ),
        plant("PoolDiffers", "Nodes with karpenter.sh/nodepool=numa", &set(1, "container"), publish),
    ]
}

fn schedulers() -> Vec<Plant> {
    let map = "ConfigMap numacast/numacast-scheduler";
    let edit = |from: &str, to: &str| {
        format!(
            "kubectl get configmap numacast-scheduler --namespace numacast --output json | sed 's/{from}/{to}/' |
                 quietly kubectl replace --filename -"
        )
    };
    let kind = ("kind: KubeSchedulerConfiguration", "kind: [");
    let mode = ("informerMode: Dedicated", "informerMode: Shared");
    let started = r#"status scheduler '{"status": {"containerStatuses": [{"name": "scheduler", "image": "x", "imageID": "", "ready": true,
                     "restartCount": 0, "state": {"running": {"startedAt": "2020-01-01T00:00:00Z"}}}]}}'"#;
    let waiting = r#"quietly kubectl create --filename - <<'END'
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waiting", "namespace": "numacast"}, "spec": {
 "schedulerName": "nobody", "serviceAccountName": "numacast-agent", "containers": [{"name": "c", "image": "i"}]}}
END"#;
    vec![
        plant("SchedulerMissing", "the cluster", "stop scheduler", "start scheduler"),
        plant("SchedulerConfigInvalid", map, &edit(kind.0, kind.1), &edit(r"kind: \[", kind.0))
            .with(&["SchedulerMissing"]),
        plant("SchedulerDisagrees", map, &edit(mode.0, mode.1), &edit(mode.1, mode.0)),
        mended("ObjectsNewerThanScheduler", "Pod numacast/scheduler", started).then("start scheduler"),
        plant("SchedulerNameUnserved", "schedulerName nobody", waiting, "stop waiting"),
    ]
}

fn controllers() -> Vec<Plant> {
    let lease = |time: &str| {
        format!(
            "quietly kubectl patch lease numacast-controller --namespace numacast --type merge --patch \
             '{{\"spec\": {{\"renewTime\": \"{time}-01-01T00:00:00.000000Z\"}}}}'"
        )
    };
    let not_ready =
        r#"status controller '{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}'"#;
    vec![
        plant("ControllerMissing", "the cluster", "stop controller", "start controller"),
        plant("ControllerNotReady", "namespace numacast", not_ready, "restart controller"),
        mended("LeaseNotHeld", "Lease numacast/numacast-controller", &lease("2020"))
            .restored(&format!("start controller; {}", lease("2090"))),
    ]
}
