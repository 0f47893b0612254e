//! Requests whose responses are streamed.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Request};
use kube::client::Body;

use super::protobuf::{decode_status, details_of};
use super::{Cluster, ClusterError};

/// Maximum size of an error response; a longer one is truncated.
const MAX_ERROR_BYTES: usize = 64 << 10;

impl Cluster {
    /// Sends a request with this media type. The response is not compressed: some servers compress each event
    /// of a watch separately.
    pub(super) async fn get_as(&self, path: String, accept: &'static str) -> Result<Body, kube::Error> {
        let request = Request::get(path)
            .header(ACCEPT, HeaderValue::from_static(accept))
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        self.send(request.body(Body::empty()).map_err(kube::Error::HttpError)?).await
    }

    /// Sends a request and returns the body of the response; an error response becomes a status, with the
    /// delay before a retry that the server asks for.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Body, kube::Error> {
        let (head, mut body) = self.client.send(request).await?.into_parts();
        if head.status.is_success() {
            return Ok(body);
        }
        let mut status = decode_status(head.status.as_u16(), &read_error(&mut body).await?);
        let details = status.details.get_or_insert_with(|| details_of(0));
        if details.retry_after_seconds == 0 {
            details.retry_after_seconds = retry_after(&head.headers);
        }
        Err(kube::Error::Api(status))
    }

    /// Sends a request and returns the body of the response, of at most `limit` bytes.
    pub(super) async fn read_limited(
        &self,
        request: Request<Body>,
        limit: usize,
    ) -> Result<Vec<u8>, kube::Error> {
        match Limited::new(self.send(request).await?, limit).collect().await {
            Ok(body) => Ok(body.to_bytes().into()),
            Err(error) if error.is::<LengthLimitError>() => {
                let reason = format!("it has more than {limit} bytes");
                Err(kube::Error::SerdeError(serde::de::Error::custom(reason)))
            }
            Err(error) => Err(kube::Error::Service(error)),
        }
    }

    pub(super) fn not_understood(&self, what: &str, reason: String) -> ClusterError {
        ClusterError::NotUnderstood { server: self.server.clone(), what: what.to_owned(), reason }
    }
}

/// Returns the seconds to wait: API Priority and Fairness sends them in a header only.
fn retry_after(headers: &HeaderMap) -> u32 {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.unwrap_or_default()
}

/// Reads a body, truncated to [`MAX_ERROR_BYTES`].
async fn read_error(body: &mut Body) -> Result<Vec<u8>, kube::Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        let room = MAX_ERROR_BYTES - bytes.len();
        bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        if bytes.len() == MAX_ERROR_BYTES {
            break;
        }
    }
    Ok(bytes)
}
