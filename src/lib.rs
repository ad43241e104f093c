//! A sidecar between OJS workers, producers and any OJS backend. It lets jobs start no faster than their limits
//! allow, and queues grow no longer than their bounds. This page is the map of the source; `README.md` is for those
//! who run it, and `config.example.toml` has every setting.
//!
//! # The rooms
//!
//! | module | what it is |
//! |---|---|
//! | [`program`] | what the binary does: arguments, log, runtimes, signals, exit status |
//! | [`cli`] | the command line's arguments |
//! | [`manual`] | the chapters of the manual, as the files have them |
//! | [`ship`] | ready-made files, as the repository has them |
//! | [`run`] | wiring: the parts from the settings, other settings while it runs, and the drain at the end; no globals |
//! | [`doctor`] | checks the store and the backend before they are used |
//! | [`demo`] | shows limits at work, judged from the records of workers and backend |
//! | [`ask`] | asks the admin port of a running sidecar, for commands such as `why` |
//! | [`client`] | a small JSON client, for the demo, the doctor and [`ask`] |
//! | [`config`] | the settings, and what is wrong with them |
//! | [`reader`] | TOML files as fields that know where they stand; all problems at once, each under its line |
//! | [`admin`] | the admin port: `/livez`, `/readyz`, `/metrics`, the page, and `/throttle/v1`: the state, `why`, verbs |
//! | [`server`] | the listener: one task for each connection; it refuses heads that can be read in two ways |
//! | [`answers`] | what a request is answered with: bodies, faults with their codes, and what streams through |
//! | [`front`] | names the operation of each request and calls its room; everything else streams through |
//! | [`control`] | what people set over HTTP: limits of keys, queues and tenants, and the verbs of the admin port |
//! | [`show`] | what readers are shown: state, `why`, limits, gauges; it decides nothing |
//! | [`jobs`] | FETCH, the sweep that nobody asks for, and what the fleet's other sidecars hold |
//! | [`egress`] | calls that programs make to services: their lines, and what they use of budgets |
//! | [`admit`] | enqueues, and how deep bounded queues are |
//! | [`shadow`] | plays what entries would have done that are only tried |
//! | [`settle`] | ACK, nack and heartbeat; they never fail on the sidecar's account |
//! | [`inquiry`] | what the sidecar asks the backend by itself, and what it makes of the answers |
//! | [`desk`] | the state that all rooms share, and the handle of each thread |
//! | [`lines`] | the lines of calls that wait, by their keys; it asks nobody |
//! | [`hold`] | claimed jobs that wait for a start, and the FETCHes that wait for them |
//! | [`subqueues`] | where a backlog of any depth waits, which of it is asked next, and what hides its names |
//! | [`store`] | usage under its key, rows of jobs that are out, what was set by hand: each operation one atomic step |
//! | [`bounds`] | how much waits in bounded queues, and whether an enqueue fits: sums under one lock, no I/O |
//! | [`policy`] | which limits apply to a job, and which can apply to a queue |
//! | [`limit`] | the limiter: all limits of a key are asked, then all are taken; pure |
//! | [`told`] | what the sidecar tells: its events, in one ring, each encoded once; every series and every reason to wait, declared once |
//! | [`wire`] | calls to the backend, and whether one may be made again; names of paths and headers; the spans of a request |
//! | [`otlp`] | sends spans to a collector, where that is wanted |
//! | [`log`] | writes the log's lines in a thread of its own, and shortens foreign texts in them |
//! | [`json`] | JSON as byte ranges, so that unchanged parts keep their bytes; numbers in a stream of it |
//! | [`duration`] | durations such as `PT1M` and `100ms` |
//! | [`life`] | what a service manager is told |
//! | [`tls`] | what a listener shows and whom it lets in, whom we trust and what we show when we call, and names in certificates |
//! | [`net`] | the only door to the network: sockets, or a network in memory |
//! | [`backend`] | an OJS backend in memory for `dev`, `demo` and tests; it shares no code with the sidecar but `net` |
//!
//! `build.rs` is no module: Cargo runs it first, for the commit that `--version` names.
//!
//! # One FETCH
//!
//! From its first byte to its last, with the files in the order in which it meets them. Paths are under `src/`.
//!
//! 1. **Read.** `server/connection.rs` serves the connection; a head that could be read in two ways is refused.
//!    `front/service.rs` names the operation (`wire/ojs.rs`) and has the body read. `jobs/fetch/answer.rs` goes on from
//!    there to the end: it reads what is asked (`jobs/fetch/asked.rs`) and whose credentials these are
//!    (`desk/scope.rs`).
//! 2. **Sections.** `jobs/fetch/section.rs` finds out once what can touch a FETCH here at all (its `Reach`). Then it
//!    asks of each queue what its name alone says of limits (`policy/gate.rs`). If no
//!    limit can touch any of them, the request goes to the backend as it came, and so does the reply, unless a job in it
//!    brings limits of its own (`jobs/fetch/whole.rs`).
//! 3. **Gather.** `jobs/fetch/gather.rs` has claims made, queue by queue, until as much is held as the worker wants that
//!    may start, for 200 ms in all. A claim is capped by what a queue's own limits let start in the next 200 ms, and by
//!    the free places of the hold (`jobs/fetch/cap.rs`). Of a queue with subqueues, `subqueues/turns.rs` says
//!    which are asked. Claims run in tasks of their own (`jobs/fetch/claim.rs`); those under way are known
//!    (`desk/claims.rs`), so that FETCHes share them, and the next one asks for what all who wait miss.
//! 4. **Hold.** What a claim brings is read (`jobs/fetch/reply.rs`, each job by `inquiry/job.rs`) and held
//!    (`hold/locked.rs`), in groups that are limited alike (`hold/queue.rs`).
//! 5. **Grant.** `jobs/fetch/grant.rs` picks by priority, then round robin over keys, then in order (`hold/pick.rs`). A job
//!    that has waited is proven to be ours still (`inquiry/prove.rs`). The store asks all limits of each job and takes from
//!    all of them or from none, in one step (`store/engine.rs`, for each key `limit/state.rs`). What is refused waits on,
//!    or is ended in the backend where its limit says `drop`.
//! 6. **Go.** The answer leaves with what was granted (`jobs/fetch/handout.rs`). A worker that hung up before the
//!    connection took the reply's body gets nothing: the start is undone and the job is held for the next one.
//! 7. **Wait.** Nothing may start, but soon: the FETCH stands in line until a slot or a time comes, at most
//!    `fetch.max_wait`, and gathers again (`jobs/fetch/wait.rs`). From its first look on it is a visit to the [`hold`],
//!    which says at its head what it is asked; when that ends, the next in line looks.
//!
//! # One ACK
//!
//! 1. [`settle`] reads the job's id and finds its row in the [`store`]: who claimed it, and under which id
//!    the backend knows the claim.
//! 2. The ACK goes upstream ([`wire`]) under that id, again and again for a while if no answer comes: the job ran,
//!    and nobody else may run it.
//! 3. Once the backend has carried it out, the row ends and with it the slots. The [`hold`] wakes those who
//!    wait for one of them, here and at the sidecars that share the store.
//!
//! # Unasked
//!
//! Loops do the work that no request asks for, and none of them waits for another: `attend` in `jobs/sweep.rs` starts
//! them.
//!
//! # Words
//!
//! | word | means |
//! |---|---|
//! | lane | a queue under one set of credentials: held jobs never cross to another. Of a line of calls: those that are refused alike |
//! | scope | a set of credentials, as a number |
//! | gate | what the name of a queue alone says of limits |
//! | section | queues of a FETCH that are asked together |
//! | in hand | picked from the hold, and being asked for or ended |
//! | offered | out of its group, because siblings may take the job over |
//! | named | told to the store by a `take`, which ends rows of earlier claims of its job |
//! | adopted | seen to run while nobody knew its claim; whoever names the job ends that row |
//! | turn, lead | a start that a fleet granted ahead; how far ahead. Of a shared key: whose start is next |
//! | episode | from a job's first refusal until it starts |
//! | base, subqueue | a queue that workers name, and one of the backend's beside it in which jobs with a key of their own wait |
//! | head | a held job of a subqueue whose key has no room: those behind it stay in the backend |
//! | spare | of a group of the hold: all of its jobs have left, and it is kept for the next one of its kind |
//! | beside | windows of a key that other jobs name: a start counts there, and does not wait for them |
//! | flow, tag | the jobs of one key, or of one group of it, that wait in one subqueue; what tells flows there apart |
//! | mark | something came to a subqueue; of a queue: the store knows that it has subqueues |
//! | trust | how many jobs are asked of a subqueue at once: as many as started without a refusal |
//! | visit | a worker is here with a FETCH: it looks at its lanes, and may stand in line |
//! | snapshot | what is held and what waits at one moment, as a value: all who show it read the same one |
//! | look | the backend is asked how deep a bounded queue is, once for all who wait for it |
//! | first in line | of a key: the job for which the room is kept that it needs; in the hold FETCHes wait in line |
//! | share, group | whose part of a key a job or a call takes, by weight (`fair`) |
//! | virtual time | of a shared key: what its groups were served, by weight; it orders their jobs |
//! | shadow, tried | of an entry: it decides nothing; its jobs wait and start in a virtual queue, which tells what would have been |
//! | budget | what calls use up beside their number, such as tokens or money: one more key of a call |
//! | call, way out | what a program asks of a service, and the `[[egress]]` through which it does: a claim without a job |
//! | settle | end a job in the backend; of a cost: put its windows right by what was used |
//!
//! # Orders
//!
//! Each of these orders says which of two things came first, and none stands for another. An order that one room
//! alone uses (the hold's `Wakes`, the bounds' `Mark`) is described there.
//!
//! | order | who counts it | what it decides |
//! |---|---|---|
//! | `Timestamp` | the store's clock | when a start counts and a row is due, the same for all sidecars |
//! | `Instant` | this machine's clock | how long something lasts; it never jumps, and no other machine knows it |
//! | `Gen` | the claimer, up from the store's clock | which of two claims of a job is the later one, even in one tick |
//! | edition | the sidecar for policies, the store for overrides | whether settings that were read are still in force |
//!
//! # Who may import whom
//!
//! Each line says what a module may use; arrows point to lines further down only. Eighteen rooms are crates of their own,
//! so that the compiler keeps their walls and each can be read, built and tested alone: [`server`], [`answers`],
//! [`config`], [`reader`], [`bounds`], [`subqueues`], [`told`], [`wire`], [`limit`], [`store`], [`policy`], [`hold`], [`json`],
//! [`duration`], [`net`], [`tls`], [`log`] and [`backend`]. For all others `tests/house.rs` compares this table with the
//! sources.
//!
//! ```text
//! main      -> program
//! program   -> ask backend cli config demo doctor life log net otlp run store wire
//! demo      -> backend cli client config net run store wire
//! doctor    -> ask client config duration net desk::BackendFacts desk::Stranger run store wire
//! ask       -> cli client config duration limit net tls wire
//! client    -> wire
//! run       -> admin bounds config desk egress inquiry jobs life net policy server show store tls told wire
//! cli       -> config duration manual ship
//! admin     -> answers config control desk server show tls told
//! server    -> answers net tls wire
//! front     -> admit answers config control desk hold inquiry jobs json limit policy settle show store subqueues tls told wire
//! control   -> admit answers bounds desk duration inquiry json limit policy show store subqueues told wire
//! show      -> answers bounds desk duration hold inquiry jobs json limit policy shadow store subqueues told wire
//! jobs      -> admit answers bounds desk egress hold inquiry json limit lines log policy shadow store subqueues told wire
//! egress    -> answers config desk inquiry json limit lines policy settle store told wire
//! admit     -> answers bounds desk duration inquiry json limit log policy store subqueues told wire
//! shadow    -> desk hold inquiry json limit policy store wire
//! settle    -> answers desk inquiry json limit policy store subqueues told wire
//! inquiry   -> answers bounds config desk duration hold json limit log policy store subqueues told wire
//! desk      -> answers bounds config duration hold json limit lines log policy store subqueues told wire
//! lines     -> config hold limit
//! answers   -> config store subqueues tls wire
//! subqueues -> bounds hold json limit policy store wire
//! config    -> bounds duration limit policy reader store tls wire
//! reader    -> duration policy
//! bounds    -> duration json limit policy wire
//! hold      -> limit policy store
//! store     -> limit log tls
//! policy    -> duration json limit
//! told      -> duration json limit wire
//! otlp      -> net tls wire
//! wire      -> net tls
//! backend   -> net
//! limit     ->
//! life      ->
//! log       ->
//! manual    ->
//! ship      ->
//! json      ->
//! duration  ->
//! tls       ->
//! net       ->
//! ```
//!
//! Time: [`limit`] and [`policy`] get the time passed in. Everything above them is on tokio's clock, so that whole
//! scenarios run paused. [`program`] reads the wall clock once, and limits never see it again; only ids and the log do. The
//! embedded [`backend`] has a wall clock of its own, to print times.
//!
//! Locks: they stay usable after a panic, so code that holds one must not panic between two steps that belong together.
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

// Unit tests use parts of the integration tests, which name this crate so.
#[cfg(test)]
extern crate self as ojs_throttle;
#[cfg(test)]
#[path = "../tests/equipment.rs"]
pub mod equipment;

pub use {
    ojs_answers as answers, ojs_backend as backend, ojs_bounds as bounds, ojs_config as config,
    ojs_duration as duration, ojs_hold as hold, ojs_json as json, ojs_limit as limit,
    ojs_log as log, ojs_net as net, ojs_policy as policy, ojs_reader as reader,
    ojs_server as server, ojs_store as store, ojs_subqueues as subqueues, ojs_tls as tls,
    ojs_told as told, ojs_wire as wire,
};

pub mod admin;
pub mod admit;
pub mod ask;
pub mod cli;
pub mod client;
pub mod control;
pub mod demo;
pub mod desk;
pub mod doctor;
pub mod egress;
pub mod front;
pub mod inquiry;
pub mod jobs;
pub mod life;
pub mod lines;
pub mod manual;
pub mod otlp;
pub mod program;
pub mod run;
pub mod settle;
pub mod shadow;
pub mod ship;
pub mod show;
