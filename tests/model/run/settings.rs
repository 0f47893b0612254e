//! The settings of a run.

use super::controller::Nudges;
use super::plugin::{Cache, Informer};
use super::queue::Backoff;
use super::time::{MS, S, Span, Time};

/// The latency of each operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// From the API server to a pod watcher: the scheduler, the plugin, the agent, the kubelet.
    pub(crate) watch: [Span; 4],
    /// From the API server to a watcher of the objects.
    pub(crate) object_watch: Span,
    pub(crate) cycle: Span,
    /// From the end of the cycle to the binding in the API server, and from there to the response.
    pub(crate) bind: [Span; 2],
    /// Additional delay of a pod that binds late (`Pod::binds_late`).
    pub(crate) late_bind: Span,
    /// From the end of a cycle to the pod condition that explains why there is no node.
    pub(crate) condition: Span,
    /// A GET of an object; `flush` is from the last response of a tick to the flush.
    pub(crate) read: Span,
    pub(crate) flush: Span,
    /// A write of the object: to the API server, and back.
    pub(crate) write: [Span; 2],
    /// A List: to the kubelet's response, and back.
    pub(crate) list: [Span; 2],
    pub(crate) admission: Span,
    pub(crate) start: Span,
    /// From a change in the kubelet to the pod status in the API server.
    pub(crate) status: Span,
    /// From an admission to the event of the checkpoint.
    pub(crate) checkpoint: Span,
    /// From a release to the event of the checkpoint.
    pub(crate) checkpoint_release: Span,
    /// From the end of a deleted pod's containers to the removal of its object.
    pub(crate) removal: Span,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            watch: [Span(MS / 3, 5 * MS); 4],
            object_watch: Span(MS / 3, 5 * MS),
            cycle: Span(MS, 4 * MS),
            bind: [Span(3 * MS / 2, 6 * MS), Span(MS, 4 * MS)],
            late_bind: Span(S, 5 * S),
            condition: Span(2 * MS, 8 * MS),
            read: Span(MS, 4 * MS),
            flush: Span(MS / 2, 2 * MS),
            write: [Span(3 * MS, 9 * MS), Span(2 * MS, 6 * MS)],
            list: [Span(MS / 2, 2 * MS), Span(MS / 2, 2 * MS)],
            admission: Span(3 * MS, 15 * MS),
            start: Span(10 * MS, 40 * MS),
            status: Span(3 * MS, 20 * MS),
            checkpoint: Span(MS, 5 * MS),
            checkpoint_release: Span(0, 1500 * MS),
            removal: Span(50 * MS, 1500 * MS),
        }
    }
}

/// All settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Allocatable CPUs of each zone of a node.
    pub(crate) zones: Vec<u32>,
    pub(crate) cache: Cache,
    pub(crate) resync: Time,
    pub(crate) informer: Informer,
    pub(crate) backoff: Backoff,
    /// Whether reserving clears the plugin's mark, as in v0.34.7 and before.
    pub(crate) reserve_clears_mark: bool,
    /// Whether the plugin is used at all.
    pub(crate) plugin: bool,
    /// Rate limit of the plugin's client: requests per second, and burst. `None`: unlimited.
    pub(crate) client: Option<(u32, u32)>,
    /// When the cluster's controller nudges.
    pub(crate) nudges: Nudges,
    pub(crate) delays: Delays,
    /// How long after receiving a binding the exporter may take until the object accounts for the pod or its
    /// fingerprint is withheld.
    pub(crate) grace: Time,
    /// Whether an oracle moves rejected pods right after each flush.
    pub(crate) oracle: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            zones: vec![7, 7],
            cache: Cache::OverReserve,
            resync: 5 * S,
            informer: Informer::Dedicated,
            backoff: Backoff { first: S, longest: 10 * S, early: true },
            reserve_clears_mark: true,
            plugin: true,
            client: None,
            nudges: Nudges::None,
            delays: Delays::default(),
            grace: 40 * MS,
            oracle: false,
        }
    }
}

impl Delays {
    /// How long after receiving a binding an exporter that withholds the fingerprint after `withhold_after`
    /// may need: a write in progress completes, a List returns, and its own write arrives.
    pub(crate) fn grace(&self, withhold_after: Time) -> Time {
        let [list_request, list_response] = self.list;
        let [write_request, write_response] = self.write;
        let scan = list_request.1 + list_response.1;
        withhold_after + 2 * (write_request.1 + scan) + write_response.1 + 2 * MS
    }
}
