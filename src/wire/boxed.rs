//! Futures in boxes.

use std::pin::Pin;

/// Boxes the future that `make` makes.
///
/// `Box::pin` makes a future before it has a place for it, and then copies all of it, with room for every later step:
/// kilobytes, mostly empty. Here the place comes first, and only the future's arguments are written to it.
pub fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

/// Boxes work of whatever kind. Where a task is begun, the runtime is compiled for each type of future, some thousand
/// lines: in a box all of them are one type. What is awaited in another crate is compiled in its own.
pub fn work<'a, T>(
    work: impl Future<Output = T> + Send + 'a,
) -> Pin<Box<dyn Future<Output = T> + Send + 'a>> {
    Box::pin(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_the_future() {
        let given = String::from("seven");
        assert_eq!(boxed(|| async move { given.len() }).await, 5);
    }
}
