//! What is wrong with the sidecar as a whole.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use http::StatusCode;

use super::Sidecar;
use super::fetching::is_of_login;
use super::process::FileRefusal;
use crate::duration;
use crate::told::causes::{self, Cause, quoted};
use crate::wire::ojs::shell_word;

/// What is wrong with the sidecar as a whole. What keeps every job from starting stands first.
pub(crate) fn of_sidecar(sidecar: &Sidecar) -> Vec<Cause> {
    let mut found = Vec::new();
    if sidecar.readiness.word() == "starting" {
        found.push(Cause::new(&causes::STARTING, &[]));
    }
    if sidecar.tasks.draining.is_cancelled() || sidecar.readiness.word() == "draining" {
        found.push(Cause::new(&causes::DRAINING, &[]));
    }
    if sidecar.tasks.threads.backend_is_away() {
        found.push(Cause::new(&causes::BACKEND_AWAY, &[]));
    } else if let Some(stranger) = sidecar.backend.stranger() {
        found.push(Cause::new(&causes::WRONG_UPSTREAM, &[("who", &stranger)]));
    } else if let Some(status) = sidecar.fetching.refused_lately() {
        let kind = match is_of_login(status) {
            true => &causes::LOGIN_REFUSED,
            false => &causes::BACKEND_REFUSES,
        };
        let what_helps = match status {
            StatusCode::NOT_FOUND => "correct server.upstream",
            _ => "look at the backend and its log",
        };
        let known: [(&str, &dyn Display); 2] = [("status", &status), ("do", &what_helps)];
        found.push(Cause::new(kind, &known));
    }
    if sidecar.store.is_lost() {
        let error = store_error(sidecar);
        found.push(Cause::new(&causes::STORE_LOST, &[("error", &error)]));
    }
    found.extend(of_services(sidecar, |_| true));
    let file = &sidecar.file;
    if let Some(refusal) = file.refusal() {
        let path = shell_word(file.path().map_or("", |path| path));
        let since = duration::rfc3339(file.since().0);
        let (why, what_helps) = match refusal {
            FileRefusal::Wrong => (
                String::new(),
                format!("`ojs-throttle check {path}` says what is wrong"),
            ),
            FileRefusal::Unfit(why) => (
                format!(" ({why})"),
                "do what the line says; the log has it as `config_refused`".to_owned(),
            ),
        };
        let known: [(&str, &dyn Display); 3] =
            [("why", &why), ("since", &since), ("do", &what_helps)];
        found.push(Cause::new(&causes::FILE_REFUSED, &known));
    }
    if sidecar.keeper.unshared.load(Ordering::Relaxed) > 0 {
        found.push(Cause::new(&causes::UNSHARED, &[]));
    }
    found.extend(sidecar.keeper.evaded.causes());
    found
}

/// Which services of these ways out do not answer.
pub(crate) fn of_services(
    sidecar: &Sidecar,
    is_asked: impl Fn(&str) -> bool,
) -> impl Iterator<Item = Cause> {
    let ways = sidecar.calling.away().into_iter();
    let away = ways.filter(move |(egress, is_away)| *is_away && is_asked(egress));
    away.map(|(egress, _)| Cause::new(&causes::SERVICE_AWAY, &[("egress", &quoted(&egress))]))
}

/// The store's last error, as a sentence has it at its end.
pub(crate) fn store_error(sidecar: &Sidecar) -> String {
    match sidecar.store.lost_by() {
        error if error.is_empty() => error,
        error => format!(" ({error})"),
    }
}
