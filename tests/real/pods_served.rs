//! The Pods API as the kubelet serves it, and as numacast serves it with each of its sources: clients
//! generated from upstream's definitions receive the same through all changes of the pods.

mod differences;
mod outage;
mod scenarios;
mod served;
mod world;

use anyhow::{Context, Result, ensure};

use crate::support::{Needs, Parts, document};
use differences::{DIFFERENCES, Row, Source};
use world::World;

/// The sources that the suite compares.
const SOURCES: &[Source] = &[Source::Kubelet, Source::PodsApi, Source::ApiServer];

macro_rules! scenarios {
    ($world:ident: $($name:ident),+ $(,)?) => {$(
        $world.scenario = stringify!($name);
        let begun = std::time::Instant::now();
        $world.$name().await.context(stringify!($name))?;
        if std::env::var_os("NUMACAST_MEASURE").is_some() {
            eprintln!("{}: {:?}", stringify!($name), begun.elapsed());
        }
    )+};
}

#[test]
fn the_document_has_the_differences() -> Result<()> {
    let test = "--test real pods_served::the_document";
    document::section("docs/internals/pods-api-differences.md", "differences", &differences::table(), test)
}

#[tokio::test]
async fn all_servers_and_clients_agree_about_pods() -> Result<()> {
    let Some(parts) = Parts::with_pods_clients(Needs::Kubelet)? else { return Ok(()) };
    let mut world = World::start(&parts, SOURCES).await?;
    scenarios!(world:
        many_pods,
        static_pods,
        updates,
        labels,
        label_and_status,
        deletions,
        terminal_pods,
        a_finalizer,
        the_pods_endpoint,
        a_finalizer_is_removed,
        terminal_pods_are_deleted,
        force_deletion,
        a_name_is_reused,
        deletions_while_disconnected,
        a_slow_watcher,
        bad_requests,
        our_server_restarts,
        the_kubelet_restarts,
        the_api_server_restarts,
        start_up,
    );
    let needed = |row: &Row| !row.sometimes && row.is_of(world.node.minor());
    let rows = DIFFERENCES.iter().enumerate().filter(|(_, row)| needed(row));
    let unused: Vec<_> = rows.filter(|(row, _)| !world.used.contains(row)).map(|(_, row)| row).collect();
    ensure!(unused.is_empty(), "these are not needed any more: {unused:#?}");
    Ok(())
}

#[tokio::test]
async fn our_server_keeps_serving_during_an_outage_of_the_api_server() -> Result<()> {
    let Some(parts) = Parts::with_pods_clients(Needs::Kubelet)? else { return Ok(()) };
    let mut world = World::start(&parts, SOURCES).await?;
    scenarios!(world: the_api_server_is_down);
    Ok(())
}
