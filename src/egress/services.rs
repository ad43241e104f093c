//! Where the calls of a way out go: to its upstream, or each to the host that it names.

use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::answers::respond::Fault;
use crate::config::{BaseUrl, Hosts};
use crate::wire::upstream::{CalledByName, Upstream};

/// So many hosts have connections of a thread. Another one takes the place of that which was called the longest ago.
const MOST: usize = 256;

/// The services behind a way out, over the connections of one thread.
#[derive(Debug)]
pub(super) struct Services {
    /// The upstream; where calls name hosts, these are called in the same way.
    pub(super) like: Upstream,
    /// The ports of this program.
    own: Arc<OnceLock<Vec<u16>>>,
    called: Mutex<CalledHosts>,
}

/// The hosts that were called.
#[derive(Debug, Default)]
struct CalledHosts {
    /// The list by which they might be.
    listed: Option<Arc<Hosts>>,
    /// Each with the number of the last call to it.
    all: HashMap<BaseUrl, (u64, Upstream)>,
    calls: u64,
}

impl Services {
    pub(super) fn new(like: Upstream, own: Arc<OnceLock<Vec<u16>>>) -> Services {
        Services {
            like,
            own,
            called: Mutex::default(),
        }
    }

    /// The one to which a call goes; `named`: by which list it names which.
    ///
    /// # Errors
    /// No certificate can bear its name.
    pub(super) fn of(&self, named: Option<(&Arc<Hosts>, BaseUrl)>) -> Result<Upstream, Fault> {
        let Some((hosts, url)) = named else {
            return Ok(self.like.clone());
        };
        let mut called = self.called.lock();
        let listed = called.listed.as_ref();
        if !listed.is_some_and(|listed| Arc::ptr_eq(listed, hosts)) {
            // Other hosts may be listed now, and other addresses open.
            *called = CalledHosts {
                listed: Some(Arc::clone(hosts)),
                ..CalledHosts::default()
            };
        }
        called.calls += 1;
        let now = called.calls;
        if let Some((last, service)) = called.all.get_mut(&url) {
            *last = now;
            return Ok(service.clone());
        }
        let by_name = CalledByName {
            allow: Arc::clone(&hosts.allow),
            own: Arc::clone(&self.own),
        };
        let service = self.like.at(url.clone(), by_name);
        let service = service.map_err(|bad| Fault::bad_request(bad.to_string()))?;
        if called.all.len() >= MOST {
            let oldest = called.all.iter().min_by_key(|(_, (last, _))| *last);
            if let Some(oldest) = oldest.map(|(url, _)| url.clone()) {
                called.all.remove(&oldest);
            }
        }
        called.all.insert(url, (now, service.clone()));
        Ok(service)
    }
}
