//! Reads Koordinator's Device of a node.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use kube::core::{Request, Status};

use super::{Cluster, ClusterError, Devices, Failure};

/// The Devices of all nodes.
const PATH: &str = "/apis/scheduling.koordinator.sh/v1alpha1/devices";

/// So many bytes the largest may have: 16 accelerators and as many cards with 256 functions each take a quarter.
const LIMIT: usize = 4 << 20;

impl Cluster {
    /// What Koordinator reports of a node's devices; `None` if it reports nothing of this node, or is not installed.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub async fn devices_of(&self, node: &str) -> Result<Option<Devices>, ClusterError> {
        let what = format!("get device {node}");
        match self.in_time(&what, self.read_devices(node)).await {
            Ok(devices) => Ok(Some(devices)),
            Err(Failure::Status(status)) if status.code == 404 => Ok(None),
            Err(failure) => Err(failure.explain(&what)),
        }
    }

    async fn read_devices(&self, node: &str) -> Result<Devices, kube::Error> {
        let request = Request::new(PATH).get(node, &kube::api::GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let answer = self.client.send(request.map(Body::from)).await?;
        let code = answer.status();
        let bytes = match Limited::new(answer.into_body(), LIMIT).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let reason = format!("it has more than {LIMIT} bytes");
                return Err(kube::Error::SerdeError(serde::de::Error::custom(reason)));
            }
            Err(error) => return Err(kube::Error::Service(error)),
        };
        if !code.is_client_error() && !code.is_server_error() {
            return serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError);
        }
        // Something in between may answer without a status.
        let mut status: Status = serde_json::from_slice(&bytes).unwrap_or_default();
        status.code = code.as_u16();
        Err(kube::Error::Api(Box::new(status)))
    }
}
