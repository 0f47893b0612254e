//! A spawned task that ends with its owner.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};

/// The handle of a task, which is aborted when the handle is dropped. As a future, it waits for the task.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Task {
    /// Spawns a task on the current Tokio runtime.
    #[must_use]
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Returns true if the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Future for Task {
    type Output = Result<(), JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
