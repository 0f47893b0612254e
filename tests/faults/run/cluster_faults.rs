//! Faults of the API server, and writes by others.

use fastrand::Rng;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::discovery::ApiResource;
use numacast::nrt::NodeResourceTopology;
use numacast_sim::api_server::{Fault, Rule, TOPOLOGIES};
use serde_json::{Value, json};

use super::environment::{Environment, NODE};
use super::pause;

/// Injects faults into a few requests, either for the object or of any kind.
pub(super) async fn fail_requests(env: &Environment, rng: &mut Rng, faults: &[Fault]) {
    let server = &env.node.server;
    let any_resource = rng.u8(0..4) == 0;
    for _ in 0..rng.u8(1..4) {
        let fault = faults[rng.usize(0..faults.len())].clone();
        let resource = (!any_resource).then_some(TOPOLOGIES.plural);
        server.inject(Rule { verb: None, resource, times: Some(rng.usize(1..4)), fault });
        env.change_device(rng);
        pause(rng, 800).await;
    }
    server.clear_faults();
}

/// Changes the numbers in the object as another manager.
pub(super) async fn edit(env: &Environment, rng: &mut Rng, manager: &str) -> Result<(), String> {
    let Some(object) = env.node.server.get(&TOPOLOGIES, "", NODE) else { return Ok(()) };
    let mut zones = object["zones"].clone();
    if rng.u8(0..4) == 0 {
        zones = Value::Array(zones.as_array().into_iter().flatten().take(1).cloned().collect());
    }
    for zone in zones.as_array_mut().into_iter().flatten() {
        for resource in zone["resources"].as_array_mut().into_iter().flatten() {
            resource["available"] = json!(rng.u8(0..9).to_string());
        }
    }
    let api: Api<DynamicObject> =
        Api::all_with(env.client.clone(), &ApiResource::erase::<NodeResourceTopology>(&()));
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    env.record(format!("{manager} writes"));
    match api.patch(NODE, &params, &Patch::Merge(json!({"zones": zones}))).await {
        Ok(_) => Ok(()),
        // It was deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
