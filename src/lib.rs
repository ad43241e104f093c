//! A sidecar between OJS workers, producers and any OJS backend, which lets jobs start no faster than
//! they may. This page is the map of the house; `README.md` is for those who run it, and
//! `config.example.toml` has every setting.
//!
//! # The rooms
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | what can be said on the command line |
//! | [`run`] | wiring: the parts from the settings, other settings while it runs, and the drain at the end; no globals |
//! | [`doctor`] | whether the store and the backend are as they must be, and what they can do |
//! | [`demo`] | limits at work, judged from the workers' and the backend's records |
//! | [`config`] | one TOML file, all its problems at once, each under its line |
//! | [`admin`] | the other port: `/livez`, `/readyz`, `/metrics`, and `/throttle/v1` for hands |
//! | [`server`] | the listener: connections in, one task each, heads that mean one thing only |
//! | [`proxy`] | one function for each operation; everything else streams through |
//! | [`hold`] | claimed jobs that wait for a start, and the FETCHes that wait for them |
//! | [`store`] | usage under its key, rows of jobs, what was set by hand: each operation one atomic step |
//! | [`pressure`] | how much waits in bounded queues, and whether an enqueue fits: sums under one lock, no I/O |
//! | [`policy`] | which limits apply to a job, and which can apply to a queue |
//! | [`limit`] | the limiter: all limits of a key are asked, then all are taken; pure |
//! | [`upstream`] | the way to the backend, and whether a call may be made again |
//! | [`events`] | what is told to those who listen: one ring, encoded once, nobody waits |
//! | [`metrics`] | every series, declared once |
//! | [`ojs`] | which operation a path names; the words of headers |
//! | [`log`] | the lines of the log, which a thread of their own writes; how much of a name stands in one |
//! | [`json`] | JSON as byte ranges, so that what is not changed keeps its bytes |
//! | [`duration`] | `PT1M` and `100ms` |
//! | [`boxed`] | futures made where they will live |
//! | [`tick`] | one reading of the clock for each poll of a connection |
//! | [`net`] | the only door to the network: sockets, or a network in memory |
//! | [`backend`] | an OJS backend in memory for `dev`, `demo` and tests: a world of its own |
//!
//! # One FETCH
//!
//! 1. [`server`] reads the head, refuses one that could be read in two ways, and hands the request
//!    to [`proxy`], which names the operation ([`ojs`]) and reads the body.
//! 2. [`policy`] says for each queue whether a limit can touch it. If none can, the request goes
//!    [`upstream`] as it came, and so does the reply, unless a job in it brings limits of its own.
//! 3. **Cap.** What may be claimed is what may start (the queue's own limits, asked of the
//!    [`store`]), and one job that may as soon as the backend can give it out; or what may be looked at (limits by
//!    key: the free lookahead of the [`hold`]).
//! 4. **Hold.** The claimed jobs are read once ([`json`]) and get their limits ([`policy`]). One that
//!    nothing held goes before is asked for at once; what may not start yet goes into the hold.
//! 5. **Start.** The hold picks by priority, then round robin over keys, then in order. A job that
//!    has waited is proven to be ours still. The store asks all its limits ([`limit`]) and takes
//!    from all of them or from none. One that is refused waits on, or is ended in the backend where
//!    its limit says `drop`.
//! 6. **Wait.** Nothing may start, but soon: the FETCH stands in line until a slot or a time comes,
//!    at most `fetch.max_wait`.
//! 7. **Hand out.** The job has started when the connection takes the reply's body. A worker that
//!    hung up before that gets nothing: the start is undone and the job is held for the next one.
//!
//! # One ACK
//!
//! 1. [`proxy`] reads the job's id and finds its row in the [`store`]: who claimed it, and under which id
//!    the backend knows the claim.
//! 2. The ACK goes [`upstream`] under that id, again and again for a while if no answer comes: the job ran,
//!    and nobody else may run it.
//! 3. Once the backend has carried it out, the row ends and with it the slots. The [`hold`] wakes those who
//!    wait for one of them, here and at the sidecars that share the store.
//!
//! # Unasked
//!
//! What no request asks for is done by seven loops, none of which waits for another: `attend` in
//! `proxy/sweep.rs` names and starts them.
//!
//! # Words
//!
//! | word | means |
//! |---|---|
//! | lane | a queue under one set of credentials: held jobs never cross to another |
//! | scope | a set of credentials, as a number |
//! | gate | what the name of a queue alone says of limits |
//! | section | queues of a FETCH that are asked together |
//! | in hand | picked from the hold, and being asked for |
//! | aside | out of its group, because a sibling may have it |
//! | doomed | to be ended instead of started |
//! | turn, lead | a start that a fleet granted ahead; how far ahead, of a start or of a claim |
//! | episode | from a job's first refusal until it starts |
//!
//! # Orders
//!
//! Which of two came first is asked of one of these, and none stands for another.
//!
//! | order | who counts it | what it tells |
//! |---|---|---|
//! | `Timestamp` | the store's clock | when a start counts and a row is looked at again, for all sidecars alike |
//! | `Instant` | this machine's clock | how long something took or lasts; it never jumps, and is nobody else's |
//! | `Gen` | who claims, up from the store's clock | which claim of a job is the later one, of two in one tick too |
//! | `Mark` | the bounds of a sidecar | what was sent before an answer was heard, however coarse the clock |
//! | `Wakes` | the hold | whether a slot ended since a question was asked: news of it may come before the refusal |
//! | edition | the sidecar for policies, the store for what is set by hand | whether what was read still counts |
//!
//! # Who may import whom
//!
//! Each line says what a module may use of this crate; arrows point to lines further down only.
//! `tests/house.rs` reads this table and the sources.
//!
//! ```text
//! main     -> backend cli config demo doctor log net run store
//! demo     -> backend config net run store
//! doctor   -> config duration net proxy::Backend run store upstream
//! run      -> admin config metrics net proxy server store upstream
//! cli      -> config
//! admin    -> metrics proxy server
//! server   -> net proxy::body proxy::load proxy::respond tick upstream
//! proxy    -> boxed duration events hold json limit log metrics ojs policy pressure store tick upstream
//! config   -> duration limit policy pressure store
//! pressure -> duration json limit policy
//! hold     -> limit policy store
//! events   -> duration json limit metrics ojs
//! metrics  -> limit
//! store    -> limit log
//! policy   -> duration json limit
//! upstream -> boxed net tick
//! backend  -> net
//! ojs      ->
//! limit    ->
//! log      ->
//! json     ->
//! duration ->
//! boxed    ->
//! tick     ->
//! net      ->
//! ```
//!
//! Time: [`limit`] and [`policy`] get it passed in; everything above is on tokio's clock, so that
//! whole scenarios run paused. `main` reads the wall clock once, and limits never see it again (request and
//! event ids and the log do); the embedded [`backend`] has one of its own, to print times.
//!
//! Locks: a panic elsewhere does not shut them, so nothing that holds one panics between two steps that belong
//! together.
#![warn(
    clippy::disallowed_methods,
    clippy::exit,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::string_slice,
    clippy::too_many_lines,
    clippy::unreachable,
    clippy::unwrap_used,
    unreachable_pub
)]

pub mod admin;
pub mod backend;
pub mod boxed;
pub mod cli;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod duration;
pub mod events;
pub mod hold;
pub mod json;
pub mod limit;
pub mod log;
pub mod metrics;
pub mod net;
pub mod ojs;
pub mod policy;
pub mod pressure;
pub mod proxy;
pub mod run;
pub mod server;
pub mod store;
pub mod tick;
pub mod upstream;
