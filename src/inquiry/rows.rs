//! The rows of jobs that are out, as requests find and move them.

use tokio::time::Instant;

use super::calls::PAUSES;
use crate::desk::Sidecar;
use crate::store::{Change, KnownRow, LedgerExt, Row, StoreError};

/// A job's row. The store is asked only where the job may have one that is not known here.
pub(crate) async fn row_of(sidecar: &Sidecar, job: &str) -> Result<Option<Row>, StoreError> {
    match sidecar.store.known(job) {
        KnownRow::Out(row) => Ok(Some(*row)),
        KnownRow::No if !sidecar.hold.has(job) => Ok(None),
        _ => sidecar.store.row(job).await,
    }
}

/// A job's row. The store is asked again and again until `deadline`, while its answer leaves the caller
/// `unsure`.
pub(crate) async fn row_by(
    sidecar: &Sidecar,
    job: &str,
    deadline: Instant,
    unsure: impl Fn(&Result<Option<Row>, StoreError>) -> bool,
) -> Result<Option<Row>, StoreError> {
    let mut pause = PAUSES.0;
    loop {
        let row = row_of(sidecar, job).await;
        if !unsure(&row) || Instant::now() + pause >= deadline {
            return row;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Moves the times of rows, all in one call.
pub(crate) async fn renew_rows(sidecar: &Sidecar, rows: Vec<Change>) {
    if !rows.is_empty() {
        // If the store is away they are overdue when their old times pass, and are looked at then.
        let _moved = sidecar.store.set_all(rows).await;
    }
}
