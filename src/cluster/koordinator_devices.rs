//! The devices that Koordinator reports for a node, in its custom resource `Device`.

mod object;

use kube::client::Body;
use kube::core::Request;

use super::{Cluster, ClusterError, Failure};

pub use object::{Device, KoordinatorDevices};

/// Path of all objects.
const PATH: &str = "/apis/scheduling.koordinator.sh/v1alpha1/devices";

/// Maximum response size in bytes: four times that of 16 accelerators and 16 cards with 256 virtual functions
/// each.
const MAX_SIZE: usize = 4 << 20;

impl Cluster {
    /// Returns the devices that Koordinator reports for a node; `None` if it reports none, or is not
    /// installed.
    pub async fn devices_of(&self, node: &str) -> Result<Option<KoordinatorDevices>, ClusterError> {
        let what = format!("get device {node}");
        match self.in_time(&what, self.read_devices(node)).await {
            Ok(devices) => Ok(Some(devices)),
            Err(Failure::Status(status)) if status.code == 404 => Ok(None),
            Err(failure) => Err(failure.explain(&what)),
        }
    }

    async fn read_devices(&self, node: &str) -> Result<KoordinatorDevices, kube::Error> {
        let request = Request::new(PATH).get(node, &kube::api::GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let body = self.read_limited(request.map(Body::from), MAX_SIZE).await?;
        serde_json::from_slice(&body).map_err(kube::Error::SerdeError)
    }
}
