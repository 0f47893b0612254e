//! A spawned task that ends with its owner.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};

/// The handle of a task, which is aborted when the handle is dropped. As a future, it waits for the task.
#[derive(Debug)]
pub struct Task<T = ()>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    /// Spawns a task on the current Tokio runtime.
    #[must_use]
    pub fn spawn(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Returns true if the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Aborts the task at its next await.
    pub fn abort(&self) {
        self.0.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
