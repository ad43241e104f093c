//! What has limits in the file under a name of its own: policies, ways out and budgets. What the settings in force do not
//! have limits nothing, whatever was seen and set before.

use crate::answers::respond::Fault;
use crate::desk::Sidecar;
use crate::desk::live::Live;
use crate::desk::settings;
use crate::limit::{Key, Limited, Limits, Space};
use crate::policy::{BROUGHT, PolicySet, Sample, Template, nearest};
use crate::store::LedgerExt;

/// What has limits in the file.
struct InFile<'l> {
    name: &'l str,
    /// What makes its keys.
    key: &'l Template,
    limits: &'l Limits,
    /// Which of its jobs or calls it binds.
    sample: Sample,
}

impl InFile<'_> {
    fn has(&self, policy: &str, key: &Key) -> bool {
        self.name == policy && self.key.may_give(key)
    }
}

fn all_of(live: &Live) -> impl Iterator<Item = InFile<'_>> {
    let policies = live.policies.policies().iter();
    let policies = policies.map(|policy| InFile {
        name: &policy.name,
        key: &policy.key,
        limits: &policy.limits,
        sample: policy.matching.sample,
    });
    let ways = live.settings.egress.iter();
    let own = ways.clone().filter_map(|way| {
        Some(InFile {
            name: &way.name,
            key: &way.key,
            limits: way.own_limits()?,
            sample: Sample::All,
        })
    });
    let budgets = ways.flat_map(|way| &way.budgets);
    let budgets = budgets.map(|budget| InFile {
        name: &budget.name,
        key: &budget.key,
        limits: &budget.limits,
        sample: Sample::All,
    });
    policies.chain(own).chain(budgets)
}

/// A limit of a job or a call with the numbers of now; `None`: the settings in force have no such policy with this key.
pub(super) fn in_force(live: &Live, one: &Limited) -> Option<Limited> {
    if one.space != Space::Job || *one.policy == *BROUGHT {
        return Some(one.clone());
    }
    let now = all_of(live).find(|of| of.has(&one.policy, &one.key))?;
    let limits = now.limits.clone();
    Some(Limited {
        limits,
        ..one.clone()
    })
}

/// Whether a policy of this name has the key.
pub(super) fn has(live: &Live, policy: &str, key: &Key) -> bool {
    policy == BROUGHT || all_of(live).any(|of| of.has(policy, key))
}

/// Where a policy binds some of its jobs or calls alone (`enforce_percent`): so many in a hundred.
pub(super) fn part_of(live: &Live, policy: &str) -> Option<String> {
    match all_of(live).find(|of| of.name == policy)?.sample {
        Sample::First(percent) => Some(format!(
            "enforce_percent of policy {policy:?} is {percent}: what is set binds {percent} in a hundred of its jobs or \
             calls, and the others start without it"
        )),
        Sample::All | Sample::AllBut(_) => None,
    }
}

/// The numbers of what has this name in the file.
pub(super) fn numbers<'l>(live: &'l Live, policy: &str) -> Option<&'l Limits> {
    let mut all = all_of(live);
    all.find(|of| of.name == policy).map(|of| of.limits)
}

/// How many keys, queues and policies are paused by hand. Those that nothing has are not.
pub(super) fn paused(sidecar: &Sidecar, live: &Live) -> usize {
    let paused = sidecar.store.overrides().paused(sidecar.store.now());
    let is_paused = |(space, key): &&(Space, Key)| match space {
        Space::Job => settings::binds(sidecar, live, key),
        Space::Queue => true,
        Space::Policy => numbers(live, key.as_str()).is_some(),
    };
    paused.iter().filter(is_paused).count()
}

/// Refuses the name of a policy that is not there: what is set for it would bind nothing.
pub(crate) fn may_bind_policy(sidecar: &Sidecar, name: &str) -> Result<(), Fault> {
    let live = sidecar.live();
    match numbers(&live, name) {
        Some(_) => Ok(()),
        None => Err(unknown_policy(sidecar, name)),
    }
}

/// 404 for a name that no policy has whose limits count.
pub(crate) fn unknown_policy(sidecar: &Sidecar, name: &str) -> Fault {
    let live = sidecar.live();
    let policies = live.policies.shadow().map_or(&[][..], PolicySet::policies);
    let mut tried = policies.iter();
    let message = if tried.any(|policy| *policy.name == *name) {
        format!(
            "policy {name:?} is only tried (mode = \"shadow\"): nothing that is set for it binds"
        )
    } else {
        let near = nearest(name, all_of(&live).map(|of| of.name));
        let near = near.map_or_else(String::new, |near| format!(": did you mean {near:?}?"));
        format!("no policy is called {name:?}{near}")
    };
    Fault::new("not_found", message).hinting(
        "name a [[policy]] of the file, an [[egress]] whose limits are its own, or an [[egress.budget]]; a key goes without --policy",
    )
}
