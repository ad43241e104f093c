//! Where the calls of a way out go: to its upstream, or each to the host that it names.

use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
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

/// The hosts that were called, the last one at the end, and the list by which they might be.
#[derive(Debug, Default)]
struct CalledHosts(Option<Arc<Hosts>>, IndexMap<BaseUrl, Upstream>);

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
        let CalledHosts(listed, called) = &mut *called;
        if !listed.as_ref().is_some_and(|of| Arc::ptr_eq(of, hosts)) {
            // Others may be listed now, and other addresses open.
            called.clear();
            *listed = Some(Arc::clone(hosts));
        }
        let service = match called.shift_remove(&url) {
            Some(service) => service,
            None => {
                let (allow, own) = (Arc::clone(&hosts.allow), Arc::clone(&self.own));
                let service = self.like.at(url.clone(), CalledByName { allow, own });
                service.map_err(|bad| Fault::bad_request(bad.to_string()))?
            }
        };
        if called.len() == MOST {
            called.shift_remove_index(0);
        }
        called.insert(url, service.clone());
        Ok(service)
    }
}
