//! Work that comes to its end although the client hangs up.
//!
//! It runs within the connection that asked for it: an ordinary request makes no task, and nothing
//! stands in line between the store's answer and the reply. Only when the connection drops it does
//! it become a task of its own.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::answers::load::Threads;
use crate::wire::boxed;

/// What is under way: in the threads, and beside the requests that are answered, by who waits for its end.
#[derive(Default, Debug)]
pub(crate) struct Tasks {
    /// What the sidecar does by itself.
    pub(crate) own: TaskTracker,
    /// ACKs, nacks and heartbeats whose clients hung up.
    pub(crate) settling: TaskTracker,
    /// Other requests whose clients hung up.
    pub(crate) left: TaskTracker,
    /// Cancelled when the sidecar drains: nothing waits from then on.
    pub(crate) draining: CancellationToken,
    /// What each thread has in hand.
    pub(crate) threads: Threads,
}

impl Tasks {
    /// Begins work of the sidecar's own. What it logs has the trace of the request that began it, if one did.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.own.spawn(boxed::work(work).in_current_span())
    }
}

/// Runs `work`. Dropped before its end, it runs on as one of `tasks`, and what it comes to is dropped.
///
/// The work comes boxed: whoever awaits it needs no room for it, and it is not copied on its way here.
pub(crate) fn to_the_end<T: Send + 'static>(
    tasks: &TaskTracker,
    work: Pin<Box<dyn Future<Output = T> + Send>>,
) -> impl Future<Output = T> + Send {
    Outliving {
        work: Some(work),
        tasks,
    }
}

/// Does at once the part of the work that waits for nothing. The rest runs on as one of `tasks`.
pub(crate) fn begin(tasks: &TaskTracker, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
    // Without a runtime the process is ending.
    if Handle::try_current().is_ok() {
        let _left = pin!(to_the_end(tasks, work)).poll(&mut Context::from_waker(Waker::noop()));
    }
}

struct Outliving<'a, T: Send + 'static> {
    /// Not there once it has ended, nor after a panic in it.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    tasks: &'a TaskTracker,
}

impl<T: Send + 'static> Future for Outliving<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        let Some(mut work) = this.work.take() else {
            return Poll::Pending;
        };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            this.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Outliving<'_, T> {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and nothing could run on.
        if let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) {
            let on = async move { drop(work.await) };
            self.tasks.spawn_on(on.in_current_span(), &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_ends_with_or_without_its_client() {
        let tasks = TaskTracker::new();
        let work = Box::pin(async { 7 });
        assert_eq!(to_the_end(&tasks, work).await, 7);

        let (go, wait) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let work = Box::pin(async move {
            wait.await.unwrap();
            done.send(7).unwrap();
        });
        let mut running = Box::pin(to_the_end(&tasks, work));
        tokio::select! {
            () = &mut running => panic!("it waits"),
            () = tokio::task::yield_now() => {}
        }
        drop(running);
        go.send(()).unwrap();
        assert_eq!(ended.await.unwrap(), 7);
    }
}
