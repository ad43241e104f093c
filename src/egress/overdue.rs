//! The rows of calls whose time has come.

use crate::desk::Sidecar;
use crate::inquiry::rows::renew_rows;
use crate::store::{Change, End, LedgerExt as _, Row};

/// Looks after the overdue rows of calls: those that live here go on for another lease, and others are over, because the
/// sidecar that had them does not look after them.
pub(crate) async fn look_after(sidecar: &Sidecar, rows: Vec<Row>) {
    let now = sidecar.store.now();
    let mut renewed = Vec::new();
    for row in rows {
        let lives = sidecar.calling.out.lock().contains_key(&row.claimed.job);
        match row.due().filter(|_| lives) {
            Some(due) => {
                let until = due.moved_to(now.plus(row.claimed.visibility));
                renewed.push(Change::until(&row.claimed, until));
            }
            None => drop(sidecar.end_by(&End::of_claim(&row.claimed)).await),
        }
    }
    if !renewed.is_empty() {
        renew_rows(sidecar, renewed).await;
    }
}
