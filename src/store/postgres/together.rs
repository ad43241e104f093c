//! Futures that are begun at once.

use std::future::poll_fn;
use std::task::Poll;

/// What these give that are begun at once, in their order.
pub(super) async fn all_at_once<F: Future>(each: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut each: Vec<_> = each.map(|one| (Box::pin(one), None)).collect();
    poll_fn(|context| {
        for (one, done) in each.iter_mut().filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(value) = one.as_mut().poll(context) {
                *done = Some(value);
            }
        }
        match each.iter().all(|(_, done)| done.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    each.into_iter().filter_map(|(_, done)| done).collect()
}
