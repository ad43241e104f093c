//! Work that comes to its end although the client hangs up.
//!
//! It runs within the connection that asked for it: an ordinary request makes no task, and nothing
//! stands in line between the store's answer and the reply. Only when the connection drops it does
//! it become a task of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Whether the client is still there, as far as the connection tells.
#[derive(Clone, Default, Debug)]
pub(super) struct Client(Arc<AtomicBool>);

impl Client {
    /// Whether it has hung up.
    pub(super) fn has_gone(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends when it has hung up.
    pub(super) async fn gone(&self) {
        // No waker is kept: the work is polled anew as soon as it is a task of its own.
        std::future::poll_fn(|_| match self.has_gone() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

/// Runs `work` for `client`. Dropped before its end, it runs on as one of `tasks`, and what it
/// comes to is dropped.
///
/// The work comes boxed: whoever awaits it needs no room for it, and it is not copied on its way here.
pub(super) fn to_the_end<T: Send + 'static>(
    tasks: &TaskTracker,
    client: Client,
    work: Pin<Box<dyn Future<Output = T> + Send>>,
) -> impl Future<Output = T> + Send {
    Outliving {
        work: Some(work),
        tasks,
        client,
    }
}

struct Outliving<'a, T: Send + 'static> {
    /// Not there once it has ended, nor after a panic in it.
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    tasks: &'a TaskTracker,
    client: Client,
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
            self.client.0.store(true, Ordering::Relaxed);
            self.tasks
                .spawn_on(async move { drop(work.await) }, &runtime);
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
        assert_eq!(to_the_end(&tasks, Client::default(), work).await, 7);

        let (go, wait) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let client = Client::default();
        let seen = client.clone();
        let work = Box::pin(async move {
            seen.gone().await;
            wait.await.unwrap();
            done.send(seen.has_gone()).unwrap();
        });
        let mut running = Box::pin(to_the_end(&tasks, client, work));
        tokio::select! {
            () = &mut running => panic!("it waits"),
            () = tokio::task::yield_now() => {}
        }
        drop(running);
        go.send(()).unwrap();
        assert!(ended.await.unwrap());
    }
}
