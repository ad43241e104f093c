//! Everything that the doctor looks at, in order.

use super::diagnosis::Diagnosis;
use super::surroundings::DoctorEnv;
use super::{backend, egress, sidecar, store};
use crate::config::Settings;

/// Checks everything that the settings name, or what becomes of calls to one host.
pub async fn examine(settings: &Settings, env: DoctorEnv) -> Diagnosis {
    let mut report = Diagnosis::default();
    if let Some(host) = &env.host {
        egress::examine_host(host, settings, &env, &mut report).await;
        return report;
    }
    store::examine(settings, &env, &mut report).await;
    match settings.calls_only() {
        true => backend::tell_none(&mut report),
        false => backend::examine(settings, &env, &mut report).await,
    }
    egress::examine(settings, &env, &mut report).await;
    sidecar::examine(settings, &mut report).await;
    report
}
