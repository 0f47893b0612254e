//! The podresources API on top of the model.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http;
use futures::StreamExt;
use http_body_util::{BodyExt as _, Full};
use prost::Message;
use prost::bytes::Bytes;
use tonic::{Code, Request, Response, Status};
use tower::Service as _;

use super::faults::{Call, Fault, RATE_LIMITED, RecordedResponse};
use super::model::Model;
use super::settings::KubeletVersion;
use super::{Shared, State, responses};
use crate::proto::{v1, v1alpha1};

/// Both API versions of the service.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Arc<Shared>);

impl Service {
    /// Applies the rate limiter, counts the call and takes the fault queued for it.
    fn begin(&self, call: Call) -> Result<Option<Fault>, Status> {
        let mut state = self.0.lock();
        let limited = self.0.options.limited && state.model.version >= KubeletVersion::V1_27;
        if !state.limiter.admit(Instant::now()) && limited {
            state.calls.rejected += 1;
            return Err(Status::resource_exhausted(RATE_LIMITED));
        }
        state.calls.count(call);
        Ok(state.faults.take(call))
    }

    fn check_v1(&self) -> Result<(), Status> {
        match self.0.lock().model.version == KubeletVersion::OnlyV1alpha1 {
            true => Err(Status::unimplemented("unknown service v1.PodResourcesLister")),
            false => Ok(()),
        }
    }

    /// The pods of a `List` of one API version: `list` creates them, `pad` a padding pod of a given size.
    async fn list_pods<T>(
        &self,
        list: fn(&mut State, Option<&Fault>) -> Vec<T>,
        pad: fn(usize) -> T,
    ) -> Result<Vec<T>, Status> {
        let fault = self.begin(Call::List)?;
        wait(fault.as_ref()).await?;
        let mut pods = list(&mut self.0.lock(), fault.as_ref());
        match fault {
            Some(Fault::Oversize(bytes)) => pods.push(pad(bytes)),
            Some(Fault::Stale(delay)) => tokio::time::sleep(delay).await,
            _ => {}
        }
        Ok(pods)
    }
}

/// Applies the faults that affect the call as a whole.
async fn wait(fault: Option<&Fault>) -> Result<(), Status> {
    match fault {
        Some(Fault::Status(code, message)) => Err(Status::new(*code, message)),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Delay(delay)) => {
            tokio::time::sleep(*delay).await;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn padding(bytes: usize) -> v1::PodResources {
    v1::PodResources { name: "x".repeat(bytes), namespace: "padding".into(), ..v1::PodResources::default() }
}

fn padding_alpha(bytes: usize) -> v1alpha1::PodResources {
    v1alpha1::PodResources { name: "x".repeat(bytes), ..v1alpha1::PodResources::default() }
}

/// The maximum number of pods in the List.
fn max_pods(fault: Option<&Fault>) -> usize {
    match fault {
        Some(Fault::Empty) => 0,
        Some(Fault::Partial(count)) => *count,
        _ => usize::MAX,
    }
}

impl State {
    fn list(&mut self, fault: Option<&Fault>) -> Vec<v1::PodResources> {
        let max = max_pods(fault);
        let pods = match self.pods_are_known {
            true => responses::list(&mut self.model, max, &mut self.rng).pod_resources,
            false => Vec::new(),
        };
        if self.recorded.is_some() {
            // A response that omits nothing allocated is correct, although it was limited.
            let is_whole = max < usize::MAX && !responses::omits_resources(&self.model, max);
            let fault = fault.filter(|_| !is_whole);
            let listed = pods.iter().map(|pod| (pod.namespace.clone(), pod.name.clone())).collect();
            self.record(Call::List, fault, self.model.restricted_to(&listed));
        }
        pods
    }

    fn list_alpha(&mut self, fault: Option<&Fault>) -> Vec<v1alpha1::PodResources> {
        if !self.pods_are_known {
            return Vec::new();
        }
        responses::list_alpha(&mut self.model, max_pods(fault), &mut self.rng).pod_resources
    }

    fn allocatable(&mut self, fault: Option<&Fault>) -> v1::AllocatableResourcesResponse {
        if self.recorded.is_some() {
            self.record(Call::Allocatable, fault, self.model.clone());
        }
        match fault {
            Some(Fault::Empty) => v1::AllocatableResourcesResponse::default(),
            _ => responses::allocatable(&self.model, self.managers_are_ready, &mut self.rng),
        }
    }

    fn record(&mut self, call: Call, fault: Option<&Fault>, model: Model) {
        self.recorded.get_or_insert_default().push(RecordedResponse {
            call,
            at: Instant::now(),
            pods_known: self.pods_are_known,
            managers_ready: self.managers_are_ready,
            fault: fault.cloned(),
            model,
        });
    }
}

/// Responds to a request with a queued raw fault if there is one, otherwise with `routes`.
pub(super) async fn respond(
    shared: Arc<Shared>,
    mut routes: Router,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Infallible> {
    let _running = RunningCall::begin(Arc::clone(&shared), request.uri().path());
    let Some((call, fault)) = shared.take_raw(request.uri().path()) else {
        return routes.call(request).await;
    };
    let message = match fault {
        Fault::Bytes(bytes) => return Ok(grpc(Body::from(framed(&bytes)))),
        Fault::Message(bytes) => return Ok(grpc(finished(framed(&bytes)))),
        _ => shared.lock().encoded(call),
    };
    let mut half = framed(&message);
    half.truncate(half.len().div_ceil(2));
    let part = futures::stream::once(async move { Ok::<_, Infallible>(half) });
    let rest = futures::stream::once(async move {
        // By then the first half is sent.
        tokio::time::sleep(Duration::from_millis(5)).await;
        shared.cut_connections();
        std::future::pending().await
    });
    Ok(grpc(Body::from_stream(part.chain(rest))))
}

/// Adds the gRPC frame header: no compression, and the length.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A body of one frame, with the trailers of a successful call.
fn finished(frame: Vec<u8>) -> Body {
    let trailers = [(http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("0"))];
    let trailers = std::future::ready(Some(Ok(trailers.into_iter().collect())));
    Body::new(Full::<Bytes>::from(frame).with_trailers(trailers))
}

fn grpc(body: Body) -> http::Response<Body> {
    let mut response = http::Response::new(body);
    let kind = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

impl Shared {
    fn take_raw(&self, path: &str) -> Option<(Call, Fault)> {
        let call = match path {
            "/v1.PodResourcesLister/List" => Call::List,
            "/v1.PodResourcesLister/GetAllocatableResources" => Call::Allocatable,
            "/v1.PodResourcesLister/Get" => Call::Get,
            _ => return None,
        };
        let mut state = self.lock();
        let fault = state.faults.take_raw(call)?;
        state.calls.count(call);
        Some((call, fault))
    }
}

impl State {
    /// The correct response, encoded.
    fn encoded(&mut self, call: Call) -> Vec<u8> {
        match call {
            Call::Allocatable => {
                responses::allocatable(&self.model, self.managers_are_ready, &mut self.rng).encode_to_vec()
            }
            _ => responses::list(&mut self.model, usize::MAX, &mut self.rng).encode_to_vec(),
        }
    }
}

#[tonic::async_trait]
impl v1::pod_resources_lister_server::PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.check_v1()?;
        let pod_resources = self.list_pods(State::list, padding).await?;
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.check_v1()?;
        if self.0.lock().model.version < KubeletVersion::V1_21 {
            return Err(Status::unimplemented(
                "unknown method GetAllocatableResources for service v1.PodResourcesLister",
            ));
        }
        let fault = self.begin(Call::Allocatable)?;
        wait(fault.as_ref()).await?;
        let mut response = self.0.lock().allocatable(fault.as_ref());
        match fault {
            Some(Fault::Oversize(bytes)) => {
                let padding = v1::ContainerDevices { resource_name: "x".repeat(bytes), ..Default::default() };
                response.devices.push(padding);
            }
            Some(Fault::Stale(delay)) => tokio::time::sleep(delay).await,
            _ => {}
        }
        Ok(Response::new(response))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.check_v1()?;
        let version = self.0.lock().model.version;
        if version < KubeletVersion::V1_27 {
            return Err(Status::unimplemented("unknown method Get for service v1.PodResourcesLister"));
        }
        if version < KubeletVersion::V1_34 {
            return Err(Status::new(Code::Unknown, "PodResources API Get method disabled"));
        }
        let fault = self.begin(Call::Get)?;
        wait(fault.as_ref()).await?;
        let request = request.into_inner();
        let state = &mut *self.0.lock();
        let pod = state.model.pod(&request.pod_namespace, &request.pod_name);
        let Some(pod) = pod.filter(|_| state.pods_are_known) else {
            let message =
                format!("pod {} in namespace {} not found", request.pod_name, request.pod_namespace);
            return Err(Status::new(Code::Unknown, message));
        };
        let pod_resources = Some(responses::pod(&state.model, pod, &mut state.rng));
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources }))
    }
}

#[tonic::async_trait]
impl v1alpha1::pod_resources_lister_server::PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<v1alpha1::ListPodResourcesRequest>,
    ) -> Result<Response<v1alpha1::ListPodResourcesResponse>, Status> {
        let pod_resources = self.list_pods(State::list_alpha, padding_alpha).await?;
        Ok(Response::new(v1alpha1::ListPodResourcesResponse { pod_resources }))
    }
}

/// A call in progress.
struct RunningCall {
    shared: Arc<Shared>,
    path: String,
}

impl RunningCall {
    fn begin(shared: Arc<Shared>, path: &str) -> Self {
        if let Some(traffic) = &mut shared.lock().traffic {
            traffic.begin(path);
        }
        Self { shared, path: path.to_owned() }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        if let Some(traffic) = &mut self.shared.lock().traffic {
            traffic.end(&self.path);
        }
    }
}
