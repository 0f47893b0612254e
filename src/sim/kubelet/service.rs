//! The podresources API over the model.

use std::sync::Arc;
use std::time::Instant;

use tonic::{Code, Request, Response, Status};

use super::answers;
use super::faults::{Age, Call, Fault};
use super::{Shared, State};
use crate::kubelet::proto::{v1, v1alpha1};

/// Both versions of the service.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Arc<Shared>);

impl Service {
    /// The limiter, the counters and the fault that waits for this call.
    fn enter(&self, call: Call) -> Result<Option<Fault>, Status> {
        let mut state = self.0.lock();
        let limited = state.limited && state.model.age >= Age::V1_27;
        if !state.limiter.admit(Instant::now()) && limited {
            state.calls.refused += 1;
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        match call {
            Call::List => state.calls.list += 1,
            Call::Allocatable => state.calls.allocatable += 1,
            Call::Get => state.calls.get += 1,
        }
        Ok(state.faults.take(call))
    }

    fn v1_is_served(&self) -> Result<(), Status> {
        match self.0.lock().model.age {
            Age::OnlyV1alpha1 => Err(Status::unimplemented("unknown service v1.PodResourcesLister")),
            _ => Ok(()),
        }
    }

    /// An answer to `List` that `tell` gives in one version's words.
    async fn answer_list<T>(
        &self,
        tell: fn(&mut State) -> Vec<T>,
        pad: fn(usize) -> T,
    ) -> Result<Vec<T>, Status> {
        let fault = self.enter(Call::List)?;
        if let Some(Fault::Empty) = fault {
            return Ok(Vec::new());
        }
        wait(fault.as_ref()).await?;
        let mut pods = tell(&mut self.0.lock());
        match fault {
            Some(Fault::Partial(count)) => pods.truncate(count),
            Some(Fault::Oversize(bytes)) => pods.push(pad(bytes)),
            _ => {}
        }
        Ok(pods)
    }
}

/// The faults that are about the call as such.
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

impl State {
    fn list(&mut self) -> Vec<v1::PodResources> {
        if !self.pods_are_known {
            return Vec::new();
        }
        answers::list(&mut self.model, &mut self.rng).pod_resources
    }

    fn list_alpha(&mut self) -> Vec<v1alpha1::PodResources> {
        if !self.pods_are_known {
            return Vec::new();
        }
        answers::list_alpha(&mut self.model, &mut self.rng).pod_resources
    }
}

#[tonic::async_trait]
impl v1::pod_resources_lister_server::PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.v1_is_served()?;
        let pod_resources = self.answer_list(State::list, padding).await?;
        Ok(Response::new(v1::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<v1::AllocatableResourcesRequest>,
    ) -> Result<Response<v1::AllocatableResourcesResponse>, Status> {
        self.v1_is_served()?;
        if self.0.lock().model.age < Age::V1_21 {
            return Err(Status::unimplemented(
                "unknown method GetAllocatableResources for service v1.PodResourcesLister",
            ));
        }
        let fault = self.enter(Call::Allocatable)?;
        if let Some(Fault::Empty) = fault {
            return Ok(Response::new(v1::AllocatableResourcesResponse::default()));
        }
        wait(fault.as_ref()).await?;
        let state = &mut *self.0.lock();
        let mut answer = answers::allocatable(&state.model, state.managers_are_ready, &mut state.rng);
        if let Some(Fault::Oversize(bytes)) = fault {
            let padding = v1::ContainerDevices { resource_name: "x".repeat(bytes), ..Default::default() };
            answer.devices.push(padding);
        }
        Ok(Response::new(answer))
    }

    async fn get(
        &self,
        request: Request<v1::GetPodResourcesRequest>,
    ) -> Result<Response<v1::GetPodResourcesResponse>, Status> {
        self.v1_is_served()?;
        let age = self.0.lock().model.age;
        if age < Age::V1_27 {
            return Err(Status::unimplemented("unknown method Get for service v1.PodResourcesLister"));
        }
        if age < Age::V1_34 {
            return Err(Status::new(Code::Unknown, "PodResources API Get method disabled"));
        }
        let fault = self.enter(Call::Get)?;
        wait(fault.as_ref()).await?;
        let request = request.into_inner();
        let state = &mut *self.0.lock();
        let pod = state.model.pod(&request.pod_namespace, &request.pod_name);
        let Some(pod) = pod.filter(|_| state.pods_are_known) else {
            let message =
                format!("pod {} in namespace {} not found", request.pod_name, request.pod_namespace);
            return Err(Status::new(Code::Unknown, message));
        };
        let pod_resources = Some(answers::pod(&state.model, pod, &mut state.rng));
        Ok(Response::new(v1::GetPodResourcesResponse { pod_resources }))
    }
}

#[tonic::async_trait]
impl v1alpha1::pod_resources_lister_server::PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<v1alpha1::ListPodResourcesRequest>,
    ) -> Result<Response<v1alpha1::ListPodResourcesResponse>, Status> {
        let pod_resources = self.answer_list(State::list_alpha, padding_alpha).await?;
        Ok(Response::new(v1alpha1::ListPodResourcesResponse { pod_resources }))
    }
}
