//! Explanations of the configuration keys, with details where a sentence is not enough.

use serde_json::Value;

use super::DOCS;
use super::layers::{self, ConfigError};

/// The explanation of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The key, from the root.
    pub key: &'static str,
    /// Its description, in a sentence or two.
    pub meaning: &'static str,
    /// The default; null if it is derived from other keys.
    pub default: Value,
    /// The effects of setting it, in paragraphs.
    pub consequences: &'static [&'static str],
}

/// Explains a key, all keys of a section, or every key.
///
/// # Errors
/// When there is no such key.
pub fn explain(key: Option<&str>) -> Result<Vec<Explanation>, ConfigError> {
    let chosen = |known: &str| {
        key.is_none_or(|key| {
            known.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let explanations: Vec<Explanation> = DOCS
        .iter()
        .filter(|(known, _)| chosen(known))
        .map(|(known, meaning)| Explanation {
            key: known,
            meaning,
            default: layers::default(known),
            consequences: CONSEQUENCES.iter().find(|(name, _)| name == known).map_or(&[], |(_, texts)| texts),
        })
        .collect();
    match key {
        Some(key) if explanations.is_empty() => Err(layers::unknown(key, "the command line".to_owned())),
        _ => Ok(explanations),
    }
}

const CONSEQUENCES: &[(&str, &[&str])] = &[
    (
        "nodeName",
        &["The object gets this name, and consumers find it by the Node's: the two must be equal. \
           `exclude.resources` is looked up by it as well."],
    ),
    (
        "consumer",
        &[
            "schedulerPlugins: what the plugin needs depends on how it reads the object, which is `cache`.",
            "kai: no fingerprint and no placement, which KAI-Scheduler does not read. The zones reserve what a bound pod asks for \
             (`publish.reserve`), which matters where KAI's plugin has reconstructAvailable: \"false\"; with \"true\", its default, \
             KAI reads no free amounts, and `publish.reserve: false` saves a write per pod.",
            "none: no fingerprint, no placement and no reservations: one write when a pod gets resources of its own, and one \
             when it gives them back.",
            "In every choice the pods of the node are followed from the API server, so that an allocation and a release show at \
             once: see `pods.source`.",
        ],
    ),
    (
        "cache",
        &[
            "overReserve: the plugin takes what it places from every zone of its cache and refreshes that at its ticks, when \
             the fingerprint agrees. The object carries the fingerprint in the scheduler's view and is held while a pod is \
             not accounted for.",
            "direct: the plugin reads the object for each pod and node (DiscardReserved, Passthrough) and looks at no \
             fingerprint. The zones reserve what a bound pod asks for until the kubelet's List shows what it got.",
            "docs/scheduler.md compares the two.",
        ],
    ),
    (
        "kubelet.caFile",
        &[
            "The certificate is always verified, since the agent shows its token. Where kubelets have certificates of the \
             cluster's CA (serverTLSBootstrap) nothing need be set. One that a kubelet made itself, \
             /var/lib/kubelet/pki/kubelet.crt, is its own CA; it names the node and no address, so `kubelet.serverName` \
             must be set as well. The file alone counts then, and is read again when it changes.",
        ],
    ),
    (
        "kubelet.config.source",
        &[
            "Policies and reservations come from it. It is read once for every kubelet that starts, since a kubelet reads \
             its own configuration only then; what was read holds until it could be read again. Keys and feature gates \
             that numacast does not know are normal.",
            "An object without policies tells the scheduler plugin that nothing is aligned on the node. So an agent that \
             finds an object keeps its policies until it can read others, and says so in the log and an Event after ten \
             times `scan.settle`. One that finds no policies waits for them up to `scan.settle`; then the object goes out \
             without, and the log and an Event say so.",
            "file: the file, drop-ins and flags, merged as the kubelet merges them. The kubelet's command line is found in \
             /proc, if the host's is mounted (`host.proc`) and the kubelet is a process of its own, which it is not in \
             k3s; without it, flags that override the file are not seen.",
            "configz: what the kubelet really runs with, from its HTTPS port. The agent must be allowed to get \
             nodes/configz; kubelets before 1.33 want nodes/proxy for it and must be read from files.",
            "auto: nobody is asked who may refuse, as long as the files can be read. none: only what the keys beside this \
             one give is published, and nothing is waited for.",
        ],
    ),
    (
        "kubelet.config.topologyManagerPolicy",
        &[
            "As RTE's --topology-manager-policy and -scope. What is given stands whatever the kubelet says: a wrong one \
             makes the scheduler place pods that the kubelet refuses. Options, the CPU manager's and the Memory Manager's \
             policy are given in the same way. Reservations are not: with static policies the kubelet tells them \
             itself.",
        ],
    ),
    (
        "scan.poll",
        &[
            "The agent looks at once when the kubelet writes a state file or a device plugin comes or goes; the poll \
           finds what no file tells. Shorter: such changes show sooner, for more calls to the kubelet.",
        ],
    ),
    (
        "scan.settle",
        &[
            "Shorter: after a restart of the kubelet a node whose pods really ended shows so sooner, but a kubelet that \
           starts slowly may make it look free. Longer: the other way round.",
        ],
    ),
    (
        "scan.notifyFile",
        &[
            "Its directory is watched, and the file need not exist: that it is created, written or touched makes the agent \
             look at once. Its content is never read. When the touch fails, say on a full disk, the poll finds the change.",
        ],
    ),
    (
        "pods.source",
        &[
            "auto, apiServer: the agent must be allowed to list and watch pods. It sees allocations and releases within \
             milliseconds, and on kubelets before 1.34, whose List names pods that have ended, it knows that these hold \
             nothing (it must be allowed to get its Node for that). Without that permission it says so; with \
             `fingerprint.view: scheduler` the object is held, with another view auto asks the kubelet.",
            "podsApi: needs no permission in the cluster, and works while the API server is away. The kubelet tells a \
             little sooner than the API server that a pod has ended. Such a source cannot serve the fingerprint in the \
             scheduler's view, for it knows pods when they are admitted, and static pods whose copy was refused.",
            "kubelet: the kubelet's /pods is read again and again (`pods.interval`), so that releases are looked for as with \
             none; it tells which pods have ended, and which are missing after a restart. The agent must be allowed to \
             get nodes/pods, which kubelets understand from 1.33 on, and the kubelet's serving certificate must be one \
             that can be verified (`kubelet.caFile`).",
            "All of them: what a source told last stays while it cannot be asked, the log says so, and when it is back \
             everything is told anew. A kubelet that has just started knows fewer pods than there are: of its own lists \
             a shorter one is believed only after a while.",
            "none: releases, and allocations where the kubelet's state files cannot be seen, are looked for by a List about once \
             a second, less often on a node where that would cost more than a thousandth of a core. On a kubelet before 1.34 a Completed pod seems to hold its memory and devices \
             until the next pod is admitted, and the scheduler plugin may never send that pod.",
        ],
    ),
    (
        "publish.apiVersion",
        &[
            "v1alpha1: for consumers that read no other version, and for CRDs that serve no other. (koord-scheduler reads \
             v1alpha1, but its CPUs from annotations of koordlet, which numacast does not write.) There are no attributes in it: policy and scope stand in topologyPolicies, the fingerprint in RTE's annotation, and \
             what else the attributes say is not said. An API server that has both versions gives each reader its own, but \
             what was written as v1alpha1 has no attributes in v1alpha2 either.",
        ],
    ),
    (
        "publish.topologyPolicies",
        &[
            "Where there are attributes the scheduler plugin and KAI-Scheduler go by these; the plugin logs two lines per \
             node and pod when it sees the field. false: it is removed where NFD left it.",
        ],
    ),
    (
        "publish.refresh",
        &[
            "The Node and the object are read and the object is applied, which changes nothing if all is well. What \
           somebody else did to the object, and a Node that was made anew, show then at the latest. Shorter: sooner, \
           for more calls.",
        ],
    ),
    (
        "publish.ownerReference",
        &[
            "true: an object that the agent makes is owned by the Node, so that garbage collection deletes it with the \
           Node; the agent must be allowed to get its own Node. The owner is never changed afterwards: when the Node \
           was made anew, garbage collection takes the old object and the agent makes another.",
            "false: the object of a removed node stays until somebody deletes it. An owner that an object has already \
           stays.",
        ],
    ),
    (
        "publish.watch",
        &[
            "true: an object that somebody deletes or edits is repaired at once. The agent must be allowed to watch \
           NodeResourceTopology objects; it holds one more connection to the API server.",
            "false: that is repaired at the next change of the node or the next `publish.refresh`.",
        ],
    ),
    (
        "publish.rivals",
        &[
            "What a person edits is written over a few times in ten minutes, what another publisher left is written \
           over once. One that writes again after that is a rival: it is named in the log, in an Event \
           (RivalPublisher) and in the count of foreign writes.",
            "report: its rewrites are not answered, so the scheduler reads its numbers until the node changes again, \
           which is always written. When it was silent for an hour it counts as gone, and its object is taken over.",
            "fight: each rewrite is answered, after 0.2 to 10 seconds. Two publishers that both fight write for ever.",
        ],
    ),
    (
        "publish.events",
        &[
            "true: the agent must be allowed to create events (events.k8s.io) in the namespace default. At most ten in \
           an hour are posted, and `kubectl describe node` shows them. false: the log says everything as well.",
        ],
    ),
    (
        "publish.placement",
        &[
            "true: the attributes of numaplacement go out with the fingerprint, which the plugin's preemption needs \
             (preemptionMode). They are left out whenever a container cannot be placed for sure.",
        ],
    ),
    (
        "publish.reserve",
        &[
            "true: from the moment a pod is bound the zones lack what it will have alone and the List does not show yet: \
             CPUs, memory and huge pages of Guaranteed pods where the kubelet's managers are static, and devices of \
             plugins. Nobody knows the zone yet, so it is taken from every zone. That is one write more per pod, before the \
             kubelet is asked. It ends when the List shows the pod, with the pod, and after `fingerprint.holdLimit`.",
            "false: whoever reads the object directly may place a second pod where the first is about to be admitted, and \
             the kubelet refuses one of them.",
        ],
    ),
    (
        "fingerprint.view",
        &[
            "scheduler: the fingerprint is that of the pods that the plugin has, known from the same source, so that pods \
             that have ended or cannot start do not freeze the node. It agrees only while the zones account for every pod \
             bound to the node; otherwise the object is held by a value that agrees with nothing. The agent must be \
             allowed to list and watch pods; until it has listed them once the object is held.",
            "kubelet: the pods of the kubelet's List, as NFD and resource-topology-exporter have it. One pod that has \
             ended, or cannot pull its image, and the plugin places nothing on the node any more.",
            "none: no fingerprint. The plugin's cache (cacheResyncPeriodSeconds above 0) never refreshes then; it is right \
             where that is 0.",
        ],
    ),
    (
        "fingerprint.method",
        &[
            "with-exclusive-resources: fewer pods count, so that fewer of them can make the plugin disagree for a \
             moment. The rule is the plugin's own, which depends on `fingerprint.plugin`.",
        ],
    ),
    (
        "fingerprint.informer",
        &[
            "A wrong one freezes nodes: dedicated counts pods that have ended for as long as they exist, shared does \
           not. The plugin's default is Dedicated; without a `cache` section it is Shared.",
        ],
    ),
    (
        "fingerprint.holdAfter",
        &[
            "A kubelet admits a pod some 10 to 40 ms after it was bound. Shorter: the plugin cannot believe the object while a \
             pod is being admitted, for one write more per pod. Longer: the other way round.",
        ],
    ),
    (
        "fingerprint.holdLimit",
        &[
            "No new pod is placed on the node while the object is held for long. Shorter: a pod that the kubelet will \
             never admit, and never refuses, keeps others away for less time; but what it asks for may be given to \
             another pod as well, which the kubelet then refuses.",
        ],
    ),
    (
        "proxy.enabled",
        &[
            "true: the agent serves docs/proxy.md's socket from its own process, with the connection to the kubelet and the \
             pods that it has anyway. It is ready only if the proxy is too: the socket is served, the kubelet answers and all \
             pods were told once. It must be allowed to get devices.scheduling.koordinator.sh \
             (`proxy.annotations.koordinator`) and to list and watch pods, and to write to `proxy.dir`; it needs more memory \
             where answers are large.",
            "false, where it was true: the socket's file stays, so that clients are told \"connection refused\" and not that \
             there is none. Move clients back to the kubelet's socket first.",
        ],
    ),
    (
        "proxy.dir",
        &[
            "Clients mount the directory, never the file in it, which is another one after each restart. It must be on the \
             host and may not be the kubelet's. Another value leaves the old socket behind, and whoever mounts the old \
             directory is refused from then on.",
        ],
    ),
    (
        "proxy.mode",
        &[
            "\"0755\": root alone connects, as with the kubelet's. \"0660\" with `proxy.group`: the members of that group \
             too. Whoever connects learns which pods, devices and CPUs there are on the node, and takes a share of the \
             kubelet's limit. A mode that lets everybody write is refused.",
        ],
    ),
    (
        "proxy.group",
        &[
            "The process must be in the group itself unless it has CAP_CHOWN; the chart puts the agent's pod into it \
             (supplementalGroups). Clients that are not root need the same number in theirs.",
        ],
    ),
    (
        "proxy.wait",
        &[
            "A pod that nobody could tell of is not waited for again for a second, and twice as long each time, up to 30 s. \
             Longer: fewer answers without devices while the API server is slow, but a CNI plugin waits for as long, and it \
             does not try again. Shorter: the other way round; with `proxy.failClosed` more requests are refused.",
        ],
    ),
    (
        "proxy.lastKnown",
        &[
            "What was told last is true until a pod comes or goes. Longer: pods that have gone are harmless, since only what \
             the kubelet lists gets devices; new ones lack theirs for as long. Shorter: an API server that is away for that \
             long takes all devices from annotations out of the answers, or with `proxy.failClosed` has them refused.",
        ],
    ),
    (
        "proxy.failClosed",
        &[
            "true: no client gets an answer of which it is known that it may lack devices. It is right where a pod without its \
             device is worse than none, as with Multus, whose pods are then tried again by the kubelet.",
            "It is one switch for all clients, exporters and CNI plugins alike, and one pod that nobody can tell of refuses \
             every client's List. So metrics have gaps while the API server is away for longer than `proxy.lastKnown`, and \
             from the start of the agent until it was reached once.",
            "A static pod is known by its mirror: one that starts while the API server is away is a pod that nobody has told \
             about. With `pods.source` podsApi or kubelet the kubelet itself tells of it.",
            "It does not cover annotations that make no sense: the devices of such a pod are left out all the same and \
             counted (numacast_proxy_annotation_problems). Whoever makes a pod could have everybody refused otherwise.",
        ],
    ),
    (
        "proxy.allocatable",
        &[
            "true: clients that take what is allocatable and take off what pods have, as exporters of topology do, get both \
             from one hand. Where a device plugin offers the same cards under another resource they are counted twice.",
            "false: they see devices in use that are nowhere allocatable.",
        ],
    ),
    (
        "proxy.zones",
        &[
            "true: zones have the devices that Koordinator gives out, as capacity, allocatable and available, and what pods \
             hold of them is taken off: a scheduler plugin that a pod asks for a resource of such a name goes by it. What is \
             merged is what clients get, CPUs and memory too (`proxy.annotations.cpus`), but for ids, which are never \
             numbered here (`proxy.annotations.sharedIds`). Until pods and devices have been told once nothing is merged.",
            "It needs `proxy.enabled` and something to merge. A card that is shared is in use as a whole: a device has no \
             halves in the object.",
        ],
    ),
    (
        "proxy.annotations.sharedIds",
        &[
            "true: GPU-1 becomes GPU-1::<number> wherever a pod has only a part of it, the number being the pod's own. \
             DCGM-exporter (--kubernetes-virtual-gpus) and others who know time slicing strip it. Whoever takes ids for real \
             ones finds no such device: not for Kata Containers and others who make CDI names of them.",
            "false: two pods have one id, and clients who map ids to pods name one of them.",
        ],
    ),
    (
        "proxy.annotations.mappings",
        &[
            "They come after Koordinator's, in this order; of a device that a pod is given twice the first container counts. \
             A layer that sets the key replaces the whole list.",
            "path: $ is the annotation's JSON, .name or ['name'] a member, [0] an element, [*] or .* all of them: elements in \
             their order, members in that of their names. Without it the text is ids, separated by commas. A path that finds \
             nothing gives no device and is no problem.",
            "id and container are templates: {} is what the path found, {.a.b} what lies below it, {1} what the first wildcard \
             matched, a name or a position. Without container it is found as for Koordinator: who requests the resource, \
             else the first that is no sidecar.",
            "Nothing says whether such an annotation is true: whoever makes a pod writes it.",
        ],
    ),
    (
        "podsApi.enabled",
        &[
            "true: the agent serves docs/pods-api.md's socket from its own process, and asks nobody twice for what it knows \
             itself. It is ready only if this is too: the socket is served and all pods were told once. It holds the pods as \
             they came, some 10 KiB each. It must be allowed to list and watch pods unless the kubelet's own Pods API tells \
             of them, and to write to `podsApi.dir`.",
            "false, where it was true: the socket's file stays, and clients are told \"connection refused\".",
        ],
    ),
    (
        "podsApi.dir",
        &[
            "Clients mount the directory, never the file in it, which is another one after each restart. Another value \
             leaves the old socket behind, and whoever mounts the old directory is refused from then on.",
        ],
    ),
    (
        "podsApi.mode",
        &[
            "\"0755\": root alone connects, as with the kubelet's. \"0660\" with `podsApi.group`: the members of that group \
             too. Whoever connects reads all that stands in the node's pods, the values of environment variables among it. \
             A mode that lets everybody write is refused.",
        ],
    ),
    (
        "podsApi.group",
        &[
            "The process must be in the group itself unless it has CAP_CHOWN; the chart puts the agent's pod into it \
             (supplementalGroups). Clients that are not root need the same number in theirs.",
        ],
    ),
    (
        "podsApi.source",
        &[
            "podsApi: what the kubelet knows, its own view of containers and static pods; kubelets serve it from 1.36 on. \
             apiServer: what the API server was told last; static pods are there as their mirrors. kubelet: `Pods` is \
             refused, PodInfo is as new as the last reading (`pods.interval`), and `nodes/pods` must be allowed.",
            "auto: podsApi, else apiServer, and back to podsApi when the kubelet begins to serve it. While neither tells, \
             PodInfo is taken from the kubelet's /pods where that may be read, and `Pods` goes on with what was told last.",
        ],
    ),
    (
        "controller.daemonSet",
        &[
            "Its node selector, affinity and tolerations say which Nodes should have an agent; its selector finds the \
             agents' pods. The controller must be allowed to get it and to list and watch pods, both in \
             `controller.namespace`. An agent is silent when its pod is missing or not Ready, which it is while it cannot \
             read its node or publish.",
        ],
    ),
    (
        "controller.lease",
        &[
            "Replicas agree by it as other controllers do: one leads for as long as it renews it, every two seconds; when \
             it was not renewed for 15 seconds another takes over. A replica that does not lead serves health and metrics \
             and writes nothing. Clocks that differ do no harm.",
        ],
    ),
    (
        "controller.nudge",
        &[
            "The scheduler plugin (NodeResourceTopologyMatch) refreshes what it knows of nodes at ticks of its own \
             (cacheResyncPeriodSeconds). A pod that it rejected is tried again when any NodeResourceTopology is updated, which \
             mostly is before the tick; the tick itself wakes no pod, and with no other event the pod waits for up to five \
             minutes. A nudge is an update of one object, in which nothing changes but the annotation numacast.io/nudge: all \
             rejected pods of the cluster are tried again.",
            "auto: 1, 2.6, 5.2 and 10.4 s after an object changed or a pod began to wait, soon after the next tick of a plugin \
             that resyncs every 1, 2, 5 or 10 s; then once a minute. There is at most one a second, none while objects change \
             by themselves more often than that, and none while no pod waits because of the plugin.",
            "A period: the last of these comes soon after a tick of that length, and longer periods than 10 s are served. \
             off: never, and the controller neither follows pods without a node nor needs the rights for it. Pods that were \
             rejected then wait for the next change of any object, or for up to five minutes.",
        ],
    ),
    (
        "controller.scheduler",
        &[
            "With an overreserving cache the scheduler plugin (NodeResourceTopologyMatch) reads the objects that are there \
             when it starts, and none that is created later (scheduler-plugins issue 967): it sends pods to such a Node \
             without looking at its NUMA nodes until it is restarted. At each controller.fleet.interval the \
             controller compares when objects were created with when the oldest container of these pods started: \
             numacast_fleet_objects_newer_than_scheduler, a warning in the log, and `controller --check` names them. It \
             must be allowed to list pods in that namespace.",
            "An object that was deleted and created again counts as well, although the plugin may know its Node. With \
             `cache: direct`, or KAI-Scheduler, leave it unset.",
        ],
    ),
    (
        "controller.garbage.interval",
        &[
            "A Node whose deletion the controller sees needs no such pass; it finds what happened while no controller ran. \
             Only metadata are read. Less than a second is a second.",
        ],
    ),
    (
        "controller.garbage.grace",
        &[
            "A Node that was deleted and registers again within this time keeps its object. Just before an object is \
             deleted its Node is asked for by name once more, and the object must not have been written since.",
        ],
    ),
    (
        "controller.garbage.most",
        &[
            "A list of Nodes that is wrong, say of an API server that was restored from an old backup, must not take the \
             scheduler's view of the cluster away. While more is due, numacast_garbage_held_back is 1 and the log and an \
             Event (GarbageHeldBack) say so; as soon as less is due it goes on by itself. When a large part of the Nodes \
             really was removed, set it to 100 for once.",
        ],
    ),
    (
        "controller.silent.after",
        &[
            "Shorter: sooner, but a rollout of the agent may tell of Nodes where it is just starting. A controller that \
             took over starts to count anew.",
        ],
    ),
    (
        "controller.fleet.interval",
        &[
            "All objects are read, in pages, and only sums are kept. A pass that takes longer than a tenth of the interval \
             makes it longer. Less than a second is a second.",
        ],
    ),
    (
        "log.level",
        &[
            "Holds at once when the file changes, unless a flag sets it. SIGUSR1 switches to debug and back. trace is for \
           whoever looks for a fault in the libraries as well.",
        ],
    ),
    (
        "zones.fillers",
        &[
            "true: a machine with the NUMA nodes 0 and 2 has the zones node-0, node-1 and node-2; node-1 has 0 of \
           everything and costs of 255.",
            "false: only zones that exist. On machines with missing ids the scheduler plugin then takes the wrong zone \
           or panics, since it takes position for id. KAI-Scheduler goes by the zones' names and needs no fillers.",
        ],
    ),
    (
        "exclude.resources",
        &[
            "The zones do not list these resources at all: no capacity, no allocatable, no available. The node's own \
           list and that of \"*\" are united, as in NFD's excludeList and RTE's resourceExclude: \
           {\"*\": [hugepages-1Gi], worker-1: [example.com/nic]}. A layer that sets the key replaces the whole map.",
            "cpu, memory and hugepages-<size>: under the policy single-numa-node the scheduler plugin rejects the node \
           for every pod that requests a native resource which no zone lists, Burstable pods too.",
            "Devices: the scheduler plugin does not check a device that no zone lists; only the total in the Node's \
           status counts. A kubelet with the policy restricted or single-numa-node refuses pods that it cannot align \
           (TopologyAffinityError).",
            "No pod disappears by it: a pod fingerprint of the method `all` covers the same pods with this list as \
           without it.",
        ],
    ),
    (
        "exclude.pods",
        &[
            "What these pods hold is not taken off: their CPUs, memory, huge pages and devices look free. An entry means \
           the pods that match both its halves; a half that is left out matches every name: \
           [{namespace: \"infra-*\"}, {namespace: default, name: \"debug-[0-9]\"}]. \
           A layer that sets the key replaces the whole list.",
            "Patterns are those of RTE's podExclude: * is any run of characters, ? one character, [a-z] one of these, \
           [^a-z] one that is not among them, and \\ takes the next character as it is. RTE calls the halves \
           namespacePattern and namePattern, and there an entry with only one of them matches nothing.",
            "The zones then promise more than the kubelet has. A pod that the scheduler sends for what an excluded pod \
           holds is refused by a kubelet with the policy restricted or single-numa-node (TopologyAffinityError), \
           again and again if a controller replaces it. Exclude pods that give way, and no others.",
            "The pod fingerprint is another matter: by it the scheduler plugin recognises that the object speaks of \
           the same pods that it knows itself, and it counts every pod on the node, excluded here or not. So a \
           fingerprint in the scheduler view counts excluded pods as well, and goes on matching. RTE takes the pods \
           of its podExclude out of the fingerprint: while one of them runs, it never matches, and the plugin's \
           over-reserving cache never takes up the node's new numbers.",
        ],
    ),
    (
        "exclude.outsideNamespace",
        &[
            "As if `exclude.pods` named every pod outside this namespace, with all that follows from it: the zones \
           promise more than the kubelet has, and the fingerprint stays as it is. Pods of this namespace that \
           `exclude.pods` names are left out too. It is the watch-namespace of NFD and RTE and serves to find out \
           what one namespace takes; do not leave it set where a scheduler reads the object.",
            "* or nothing: the pods of every namespace count.",
        ],
    ),
    (
        "metrics.tls.certFile",
        &[
            "The files are read again when they change, so that a certificate that is renewed in a Secret needs no \
           restart. New files that do not work leave the old ones in use, and the log says so. TLS 1.2 and 1.3.",
        ],
    ),
    (
        "metrics.tls.clientCaFile",
        &["A reader without a certificate that one of these authorities signed gets no answer."],
    ),
    (
        "health.address",
        &[
            "livez: the loop turns, and the kubelet's configuration file was not replaced under its mount; a restart helps where \
           not. readyz: the node was read and its object \
           written not too long ago. startupz: the object was in the API server once. Each answers 200, or 503 with one \
           sentence per reason.",
            "A kubelet probes the pod's address, not loopback: in a pod that it is to probe, set :9743, which is that \
           port of every address, IPv4 or IPv6. The same address as `metrics.address` serves both, unless metrics have TLS.",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated;

    #[test]
    fn the_document_lists_every_key() {
        let row = |Explanation { key, meaning, default, .. }: Explanation| {
            let default = match default {
                Value::Null => String::new(),
                Value::String(text) => format!("`{text}`"),
                other => format!("`{other}`"),
            };
            // Outside a code span, a path's placeholder would be parsed as an HTML tag.
            let meaning = meaning.replace('<', "\\<").replace('*', "\\*");
            format!("| `{key}` | {default} | {meaning} |\n")
        };
        let rows: String = explain(None).unwrap().into_iter().map(row).collect();
        let table = format!("| key | default | meaning |\n|---|---|---|\n{rows}");
        generated::section("docs/configuration.md", "keys", &table);
    }

    #[test]
    fn only_keys_are_explained_and_each_once() {
        for (index, (key, texts)) in CONSEQUENCES.iter().enumerate() {
            assert!(DOCS.iter().any(|(known, _)| known == key), "{key}");
            assert!(CONSEQUENCES[..index].iter().all(|(other, _)| other != key), "{key}");
            assert!(!texts.is_empty(), "{key}");
        }
    }

    #[test]
    fn a_key_a_section_or_everything_is_explained() {
        let keys = |key| explain(key).unwrap().iter().map(|e| e.key).collect::<Vec<_>>();
        assert_eq!(keys(Some("zones.fillers")), ["zones.fillers"]);
        assert_eq!(keys(Some("scan")), ["scan.poll", "scan.settle", "scan.notifyFile"]);
        assert_eq!(keys(None).len(), DOCS.len());
        assert_eq!(explain(Some("scan.settle")).unwrap()[0].default, "30s");
        assert_eq!(explain(Some("host.sys")).unwrap()[0].default, Value::Null);
        assert_eq!(
            explain(Some("podExclude")).unwrap_err().to_string(),
            "unknown key `podExclude` in the command line; did you mean `exclude.pods`?"
        );
        assert!(explain(Some("sca")).is_err(), "a part of a name is no section");
    }
}
