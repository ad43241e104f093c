//! The codes of our own errors, each declared once: replies and the manual are made from that.

use http::StatusCode;

/// What is declared of a code.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// The word for programs.
    pub word: &'static str,
    /// The status of each reply with it.
    pub status: StatusCode,
    /// What to do about it, where no more is known.
    pub hint: &'static str,
    /// What it means, as Markdown.
    pub means: &'static str,
}

macro_rules! codes {
    ($( $(#[doc = $means:literal])* $status:ident $word:literal: $hint:literal; )*) => {
        /// All codes, in the order of their statuses.
        pub const CODES: &[Code] = &[$(
            Code { word: $word, status: StatusCode::$status, hint: $hint, means: concat!($($means, "\n"),*) },
        )*];
    };
}

codes! {
    /// The request is not valid. `details.field` names the field. Cases:
    ///
    /// - a wrong limit, override or page; a queue's or tenant's name over 1,000 bytes;
    /// - a policy's key is missing (`key_missing = "reject"`); an ambiguous path or head;
    /// - a FETCH for more than 1,000 queues, or one that cannot be read, where there are limits;
    /// - `options`, `queue`, `jobs` or `queues` several times, in whatever spelling;
    /// - an enqueue with `NaN`, or with a number that no double holds, where jobs may be limited;
    /// - a head that is no HTTP/1.1, such as a path or query with a raw `"`, `<` or space;
    /// - text behind the JSON, or JSON deeper than 64 (not in an ACK, nack or heartbeat).
    BAD_REQUEST "invalid_request": "mend what the message names: as it is, it is refused again";
    /// A call through `[[egress]]` names one host in its first line and another one in `Host`. Or that line asks for https,
    /// and calls go on without TLS.
    BAD_REQUEST "host_mismatch": "name the same host in both, as HTTP clients do by themselves";
    /// Looking at an admin port that others reach, without the control token; a call without the token of its
    /// `[[egress]]`. `WWW-Authenticate` lets a browser ask for it. A call that names a whole URL gets 407 instead, as from a
    /// proxy.
    UNAUTHORIZED "unauthorized":
        "send server.control_token, as Authorization: Bearer or as the password that a browser asks for";
    /// Changing limits or keys without the right to. The chapter `security` says who may.
    FORBIDDEN "forbidden": "send the control token: Authorization: Bearer and the text of server.control_token";
    /// A call through `[[egress]]` names a host that its entry does not, or not any more since the call waits. The message
    /// says which ones it does.
    FORBIDDEN "host_not_listed":
        "call what the entry names, by a whole URL or by Host; with `upstream`, this port is the SDK's base URL";
    /// A call through `[[egress]]` names a listed host, and that has an address which is not public. Nothing was sent.
    FORBIDDEN "address_refused":
        "look whether the name is right; where calls may go to that address, write it in `allow` of the entry";
    /// A key that nothing has named and that uses nothing; `_queue:NAME`; a DELETE of a limit that is not set; a path or a job
    /// that there is not.
    NOT_FOUND "not_found": "look at the path; GET /ojs/v1/rate-limits lists the keys there are";
    /// A method that the path does not have (`Allow` lists them); CONNECT, TRACE.
    METHOD_NOT_ALLOWED "method_not_allowed": "use a method that the Allow header names";
    /// The body took longer than `server.body_timeout`, on routes whose bodies are read whole.
    REQUEST_TIMEOUT "request_timeout": "send the whole body without a pause, over a new connection";
    /// Limits are set for 100,000 keys, or bounds for 20,000 queues and tenants. Or a queue's config sets limits beside
    /// some that expire.
    CONFLICT "conflict": "take away what the message names, then send it again";
    /// The body is larger than `server.max_body`, on routes whose bodies are read whole.
    PAYLOAD_TOO_LARGE "payload_too_large": "send less at once, or raise server.max_body";
    /// A part of the key of a call through `[[egress]]` stands in its body (`{json.NAME}`), and that is no JSON, compressed,
    /// or larger than 1 MiB.
    PAYLOAD_TOO_LARGE "key_unreadable":
        "send the body as JSON of at most 1 MiB, or take the place {json.NAME} out of the key";
    /// The body is compressed, on routes whose bodies are read whole. On any route: gRPC. A change on the admin port that
    /// is not `application/json`.
    UNSUPPORTED_MEDIA_TYPE "unsupported_media_type": "send the body as it is";
    /// `Expect` other than 100-continue.
    EXPECTATION_FAILED "expectation_failed": "leave the Expect header out";
    /// A request has more than 256 header lines, or a head of more than 32 KiB. The first of all requests with more than
    /// 100 lines is refused too: then the sidecar makes room for such heads.
    REQUEST_HEADER_FIELDS_TOO_LARGE "head_too_large": "send fewer or shorter headers";
    /// An enqueue met a bound of its queue. The chapter `producers` shows the answer.
    TOO_MANY_REQUESTS "QUEUE_FULL": "come back after Retry-After; more workers or a larger bound let more in";
    /// An enqueue met the bound of a tenant.
    TOO_MANY_REQUESTS "TENANT_LIMIT_EXCEEDED":
        "come back after Retry-After; more workers or a larger bound let more in";
    /// An enqueue met the `enqueue_rate` of its queue. Or a call through `[[egress]]` has no start within its `max_wait`,
    /// or `max_waiting` calls wait already: then `OJS-Throttle-Limited` is its key.
    TOO_MANY_REQUESTS "rate_limited": "come back after Retry-After, or raise enqueue_rate";
    /// A call through `[[egress]]` has no start within an hour, because its key has used up a long window or is shut.
    /// `details.next_start` is when it has one, and `OJS-Throttle-Limited` its key. To make it again is no use before.
    TOO_MANY_REQUESTS "budget_spent":
        "let the job fail, or come back at details.next_start; `ojs-throttle why --key KEY` names the limit";
    /// A bug. The log has it.
    INTERNAL_SERVER_ERROR "internal_error": "look for the error in the log of ojs-throttle";
    /// An enqueue was sent and the reply was lost. Or that of a call through `[[egress]]` which does something anew each
    /// time: a POST or PATCH without `Idempotency-Key`.
    INTERNAL_SERVER_ERROR "in_doubt": "look whether the job exists before sending it again";
    /// `Transfer-Encoding` other than chunked.
    NOT_IMPLEMENTED "not_implemented": "send a Content-Length, or Transfer-Encoding: chunked and nothing else";
    /// No connection to the backend.
    BAD_GATEWAY "backend_unreachable":
        "look whether the backend runs where server.upstream says; `ojs-throttle doctor` tells more";
    /// The backend's reply broke off, or has more than 256 header lines; the first with more than 100 is lost too. Or it
    /// must be read and is over 256 MiB, or more: see `server.max_body`.
    BAD_GATEWAY "backend_reply_lost": "look in the backend's log why it broke its reply off";
    /// A FETCH was answered with what cannot be read, and jobs in it may be limited. The message says what it is. What
    /// was claimed comes again when its claim lapses.
    BAD_GATEWAY "backend_reply_unreadable":
        "look what stands between here and the backend, and whether server.upstream is an OJS backend";
    /// No connection to the service that an `[[egress]]` entry names.
    BAD_GATEWAY "service_unreachable": "look at `upstream` or `hosts` of the entry, and whether the service is there";
    /// The reply of such a service broke off before its head was whole, or cannot be read.
    BAD_GATEWAY "service_reply_lost": "ask the service whether it has carried the call out";
    /// The backend does not tell the depth of a queue that may be full (5xx, 429 or 408).
    BAD_GATEWAY "backend_stats_failed": "look in the backend's log why GET /ojs/v1/queues/NAME/stats fails";
    /// The backend does not say where a job is that `why` asks about.
    BAD_GATEWAY "upstream_error": "look at the backend; where it asks for credentials, set upstream.token";
    /// More than `server.max_in_flight` requests in a thread. Requests that are still worked on after their clients hung
    /// up count. ACKs, nacks and heartbeats have as many places of their own. Or the bodies of all requests in progress
    /// are more bytes than `server.max_bodies`: then the message says so.
    SERVICE_UNAVAILABLE "overloaded": "come back after Retry-After; if it lasts, raise server.max_in_flight";
    /// While the store is lost, usage cannot be read, and limits, bounds and keys cannot be set or deleted. In the 2 s
    /// after it came back empty, they cannot be deleted, and keys cannot be shut or opened by hand. A change that got
    /// this answer is not made later. It was made already if only the store's answer was lost: GET tells. An ACK or nack
    /// gets it after `settle.retry_for`, where the backend refuses it and the store does not say which sidecar has the job.
    SERVICE_UNAVAILABLE "store_unavailable":
        "look whether the store of store.url answers; `ojs-throttle doctor` tells more";
    /// A call through `[[egress]]` waited for its start when the sidecar stopped.
    SERVICE_UNAVAILABLE "draining": "send the call again: another sidecar, or the next one here, takes it";
    /// A call through `[[egress]]` got no reply within 10 minutes.
    GATEWAY_TIMEOUT "service_timeout": "look why the service that the entry names does not answer";
    /// The backend sent nothing within `server.upstream_timeout`. It is 2 s, doubling, for a FETCH that waits for the
    /// first manifest.
    GATEWAY_TIMEOUT "backend_timeout":
        "look why the backend is slow; server.upstream_timeout is how long it may take";
    /// A request or a call came back to the sidecar that had sent it on, or would have.
    LOOP_DETECTED "loop_detected":
        "server.upstream, or `upstream` of the entry, leads back to this sidecar: let it name what is behind it";
}

/// What is declared of the code. It must be; were it not, the fault would be ours.
pub(super) fn declared(word: &str) -> Option<&'static Code> {
    let code = CODES.iter().find(|code| code.word == word);
    debug_assert!(code.is_some(), "{word} is not declared");
    code
}
