//! What a store operation gives: an answer that is known, or one that somebody has to bring.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::StoreError;

/// The answer of a store operation, some time. A store that knows it at once makes no allocation for it.
pub struct Answer<'a, T>(When<'a, T>);

enum When<'a, T> {
    Now(Ready<Result<T, StoreError>>),
    Later(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>),
}

impl<'a, T> Answer<'a, T> {
    /// An answer that is known.
    pub fn now(value: T) -> Answer<'a, T> {
        Answer(When::Now(ready(Ok(value))))
    }

    /// An answer that somebody has to bring.
    pub fn later(answer: impl Future<Output = Result<T, StoreError>> + Send + 'a) -> Answer<'a, T> {
        Answer(When::Later(Box::pin(answer)))
    }
}

impl<T> Future for Answer<'_, T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.get_mut().0 {
            When::Now(answer) => Pin::new(answer).poll(cx),
            When::Later(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            When::Now(_) => "Answer, known",
            When::Later(_) => "Answer, on its way",
        })
    }
}
