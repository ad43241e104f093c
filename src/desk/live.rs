//! What the config says now. Settings and policies are swapped as one, so that no request sees a part
//! of one file and a part of another.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::config;
use crate::limit::{Key, Limits};
use crate::policy::{LimitCache, PolicySet, Template};

/// What the proxy is told by the config: all of it, and what is made of it.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    /// The config, so that a setting is said there and used here, and nowhere else.
    pub config: Arc<config::Settings>,
    /// The worker id of the sidecar's own claims, if it has one that lasts.
    pub worker_id: Option<String>,
    /// The `Authorization` of the sidecar's own calls, where a scope has none to lend.
    pub token: Option<http::HeaderValue>,
    /// The token with which limits may be changed on any listener.
    pub control_token: Option<http::HeaderValue>,
    /// Whether `POST /ojs/v1/admin/reset` clears the sidecar too (`dev` only).
    pub reset: bool,
}

impl Deref for ProxySettings {
    type Target = config::Settings;

    fn deref(&self) -> &config::Settings {
        &self.config
    }
}

impl ProxySettings {
    /// From a config; `reset` is for `dev`.
    ///
    /// # Errors
    /// The field of a token that cannot stand in a header.
    pub fn new(config: Arc<config::Settings>, reset: bool) -> Result<ProxySettings, &'static str> {
        let header = |field, text: String| match http::HeaderValue::try_from(text) {
            Ok(mut value) => {
                value.set_sensitive(true);
                Ok(value)
            }
            Err(_) => Err(field),
        };
        let token = config.upstream.token.as_ref();
        let token =
            token.map(|token| header("upstream.token", format!("Bearer {}", token.expose())));
        let control = config.server.control_token.as_ref();
        let control =
            control.map(|token| header("server.control_token", token.expose().to_owned()));
        Ok(ProxySettings {
            worker_id: config.upstream.worker_id.clone(),
            token: token.transpose()?,
            control_token: control.transpose()?,
            reset,
            config,
        })
    }

    /// Whether the data port can be reached from this machine only, so that whoever reaches it may change limits.
    pub fn is_on_loopback(&self) -> bool {
        self.server.listen.ip().to_canonical().is_loopback()
    }

    /// Whether the admin port can be reached from this machine only.
    pub fn is_admin_on_loopback(&self) -> bool {
        self.server.admin_listen.ip().to_canonical().is_loopback()
    }

    /// The most enqueues that may wait for room at once: they must not keep ACKs out.
    pub fn max_blocked(&self) -> usize {
        self.server.max_in_flight / 4
    }
}

/// Everything that can change while the sidecar runs.
#[derive(Debug)]
pub struct Live {
    pub(crate) settings: ProxySettings,
    pub(crate) policies: Arc<PolicySet>,
    /// Counts the changes. What was made from an earlier one is made anew before it decides anything.
    pub(crate) edition: u64,
    known: Mutex<LimitCache>,
}

impl Live {
    pub(crate) fn new(settings: ProxySettings, policies: Arc<PolicySet>) -> Live {
        Live {
            settings,
            policies,
            edition: 0,
            known: Mutex::default(),
        }
    }

    /// What comes after this.
    pub(crate) fn next(&self, settings: ProxySettings, policies: Arc<PolicySet>) -> Live {
        Live {
            edition: self.edition + 1,
            ..Live::new(settings, policies)
        }
    }

    /// The tenant header of a request, if it is trusted.
    pub(crate) fn trusted<'a>(&self, tenant: Option<&'a str>) -> Option<&'a str> {
        tenant.filter(|_| self.settings.server.trust_tenant_header)
    }

    /// What the file limits under a name: by policies, ways out that have limits themselves, and budgets. Beside the name
    /// stands what makes the keys.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&str, &Template, &Limits)> {
        let policies = self.policies.policies().iter();
        let policies = policies.map(|policy| (&*policy.name, &policy.key, &policy.limits));
        let ways = self.settings.egress.iter();
        let own = ways
            .clone()
            .filter_map(|way| Some((&*way.name, &way.key, way.own_limits()?)));
        let budgets = ways.flat_map(|way| &way.budgets);
        let budgets = budgets.map(|budget| (&*budget.name, &budget.key, &budget.limits));
        policies.chain(own).chain(budgets)
    }

    /// What the file makes keys by, beside the name that it has: policies, ways out and budgets.
    pub(crate) fn templates(&self) -> impl Iterator<Item = (&str, &Template)> {
        let policies = self.policies.policies().iter();
        let policies = policies.map(|policy| (&*policy.name, &policy.key));
        let ways = self.settings.egress.iter();
        let budgets = ways.clone().flat_map(|way| &way.budgets);
        let budgets = budgets.map(|budget| (&*budget.name, &budget.key));
        let ways = ways.map(|way| (&*way.name, &way.key));
        policies.chain(ways).chain(budgets)
    }

    /// Whether the file may give a job or a call this key, and limit it. `false` is certain.
    pub(crate) fn may_give(&self, key: &Key) -> bool {
        self.templates().any(|(_, template)| template.may_give(key))
    }

    /// The limits of jobs like which one was seen under these policies.
    pub(crate) fn known(&self) -> MutexGuard<'_, LimitCache> {
        self.known.lock()
    }

    /// Forgets them: those that are still seen are found again with the next job.
    pub(crate) fn forget_known(&self) {
        let known = std::mem::take(&mut *self.known());
        // Not while the lock is held.
        drop(known);
    }
}

/// A duration in the store's unit.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
