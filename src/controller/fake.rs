//! A fake API server for tests, with programmable responses and delays.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::events::EventRecorder;
use super::garbage_collection::Rules;
use super::health::Health;
use super::metrics::Metrics;
use super::nudge::NudgePlan;
use super::settings::Settings;
use super::workers::Workers;
use crate::cluster::Cluster;
use crate::nrt::Form;
use crate::telemetry::registry::Registry;

/// Returns a cluster whose API server is `respond`: it gets the method and the path with query, and returns
/// status code and body.
pub(super) fn cluster<R, F>(respond: R) -> Cluster
where
    R: Fn(String) -> F + Send + Sync + 'static,
    F: Future<Output = (u16, Value)> + Send + 'static,
{
    let respond = Arc::new(respond);
    let service = tower::service_fn(move |request: Request<Body>| {
        let respond = Arc::clone(&respond);
        async move {
            let (code, body) = respond(format!("{} {}", request.method(), request.uri())).await;
            let response = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let client = kube::Client::new(service, "default");
    Cluster::with_client(client, "fake".to_owned(), Duration::from_secs(30))
}

pub(super) fn metrics() -> Arc<Metrics> {
    let health = Health::new(true, Duration::from_secs(600), Duration::from_secs(60));
    Arc::new(Metrics::register(&mut Registry::default(), Arc::new(health)))
}

/// The parts of a controller without a DaemonSet.
pub(super) struct Parts {
    pub(super) settings: Settings,
    cluster: Cluster,
    pub(super) metrics: Arc<Metrics>,
    events: EventRecorder,
}

impl Parts {
    pub(super) fn new(cluster: Cluster) -> Self {
        let settings = Settings {
            identity: "numacast_0".to_owned(),
            namespace: String::new(),
            daemon_sets: Vec::new(),
            lease: None,
            dry_run: false,
            garbage: Rules {
                interval: Duration::from_secs(600),
                grace: Duration::from_secs(60),
                max_percent: 20,
            },
            not_ready_after: Duration::from_secs(300),
            fleet_interval: Duration::from_secs(60),
            nudge: Some(NudgePlan::default()),
            scheduler: None,
            restart_scheduler: false,
            shapes: BTreeMap::new(),

            form: Form::default(),
            events: true,
        };
        let metrics = metrics();
        let events = EventRecorder::new(cluster.clone(), "test".to_owned(), true, Arc::clone(&metrics));
        Self { settings, cluster, metrics, events }
    }

    pub(super) fn workers(&self) -> Workers<'_> {
        Workers::new(&self.settings, &self.cluster, &self.metrics, &self.events)
    }
}
