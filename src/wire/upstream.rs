//! Calls the backend. Each thread keeps idle connections of its own. Heads are cleaned on both sides, replies are read
//! whole or streamed, and one question decides whether a call may be made again: was it written?

mod addresses;
mod base_url;
mod body;
mod call;
mod caller;
mod coding;
mod error;
mod gate;
mod headers;
mod link;
mod outage;
mod pool;
mod reply_body;
mod target;

pub use addresses::AddressRange;
pub use base_url::{BaseUrl, one_name, usual_port, with_port, without_login};
pub use body::{BodyError, NotCollected, RequestBody, RequestLeft, collect};
pub use call::{Call, CallBounds, ECHO, FEW_HEADER_LINES, HEADER_LINES, IDENTITY, Reply};
pub use caller::Upstream;
pub use coding::is_packed;
pub use error::{SendError, UpstreamError};
pub use gate::{WakeGate, hold};

pub use ojs_net::SMALL_BODY;

pub use headers::{detached, named_by_connection, strip_hop_by_hop, wants_websocket};
pub use pool::CalledByName;
pub use reply_body::ReplyBody;
pub use target::{BadTarget, Path, Target};
