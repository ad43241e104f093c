//! ACKs and nacks whose answers have not reached their workers, as far as is known. When such a request comes again, it
//! may have been carried out already.

use std::hash::BuildHasher;
use std::sync::Arc;

use crate::answers::body::Watch;
use crate::desk::Sidecar;
use crate::desk::unheard::Run;
use crate::store::Claim;

/// Which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Verb {
    Ack,
    Nack,
}

/// Why a request that the backend refuses may have been carried out already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    /// A try of ours got no answer.
    Tried,
    /// Its worker asked before, and got no answer.
    Again,
}

/// One ACK or nack, from when it comes until its worker has the answer.
pub(super) struct Request {
    sidecar: Arc<Sidecar>,
    request: u64,
    /// The run of the same request that came before and whose worker got no answer, as far as we know.
    earlier: Option<Option<Run>>,
    heard: bool,
}

impl Request {
    pub(super) fn begin(sidecar: &Arc<Sidecar>, verb: Verb, scope: u64, body: &[u8]) -> Request {
        let request = sidecar.settle.unheard.hasher.hash_one((verb, scope, body));
        Request {
            sidecar: Arc::clone(sidecar),
            request,
            earlier: sidecar.settle.unheard.note(request),
            heard: false,
        }
    }

    /// Why it may have been carried out already.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.earlier.as_ref().map(|_| Doubt::Again)
    }

    /// Remembers which run of its job it is of.
    pub(super) fn note_run(&self, now: &Claim) {
        self.sidecar.settle.unheard.note_run(self.request, now);
    }

    /// Whether it came before, and another worker got the job since.
    pub(super) fn is_of_earlier_run(&self, now: &Claim) -> bool {
        let then = self.earlier.iter().flatten().next();
        then.is_some_and(|then| {
            now.generation > then.claim && now.is_with_another(then.worker.as_deref())
        })
    }
}

impl Watch for Request {
    fn sent(&mut self) {
        self.heard = true;
        self.sidecar.settle.unheard.forget(self.request);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.heard {
            self.sidecar.settle.unheard.renew(self.request);
        }
    }
}
