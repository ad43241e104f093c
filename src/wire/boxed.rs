//! Futures that are made where they will live.

use std::pin::Pin;

/// Boxes the future that `make` makes.
///
/// `Box::pin` makes a future before it has a place for it, and then copies all of it, with room for every later step:
/// kilobytes, mostly empty. Here the place comes first, and only the future's arguments are written to it.
pub fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
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
