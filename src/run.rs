//! Wiring: the parts from the settings, and the drain at the end. It makes no runtime, no thread, no
//! signal handler and no global; `main` does, and tests do without.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::request::Parts;
use http::{HeaderValue, Response};
use hyper::body::Incoming;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::admin::{Admin, Readiness};
use crate::config::{self, MediaType, Settings};
use crate::metrics::Metrics;
use crate::net::{Listener, Net};
use crate::proxy::body::Body;
use crate::proxy::load::Load;
use crate::proxy::respond::Relabel;
use crate::proxy::{self, Backend, Proxy, Sidecar};
use crate::server;
use crate::store::Store;
use crate::upstream::{self, Target, Upstream};

mod reload;
mod storage;

pub use reload::{LogLevel, Outcome, Reload};
pub use storage::open_store;

use reload::Following;

/// How long connections may take to end after the drain.
const CLOSING: Duration = Duration::from_secs(3);

/// How often it is looked whether the store has answered for the first time.
const LOOK: Duration = Duration::from_millis(100);

/// What comes from outside: where connections are made, where usage is kept, and chance.
#[derive(Clone, Debug)]
pub struct Env {
    /// The network.
    pub net: Net,
    /// Where usage is kept.
    pub store: Arc<dyn Store>,
    /// Makes this sidecar's own worker id.
    pub seed: u64,
    /// Whether `POST /ojs/v1/admin/reset` clears the sidecar too (`dev`).
    pub reset: bool,
}

/// How a run ends: first in order, then at once.
#[derive(Clone, Default, Debug)]
pub struct Stop {
    /// Begin to drain.
    pub drain: CancellationToken,
    /// Do not wait any longer.
    pub now: CancellationToken,
}

/// A bound and wired sidecar that does not serve yet.
#[derive(Debug)]
pub struct Running {
    settings: Settings,
    env: Env,
    sidecar: Arc<Sidecar>,
    upstream: Upstream,
    readiness: Arc<Readiness>,
    metrics: Metrics,
    data: Listener,
    admin: Listener,
    closing: CancellationToken,
    over: CancellationToken,
    /// The threads beyond this one that have connections.
    serving: TaskTracker,
    reload: Reload,
    following: Option<Following>,
}

/// One more thread's share: a listener on the same port and connections of its own.
#[derive(Debug)]
pub struct Thread {
    addr: SocketAddr,
    net: Net,
    sidecar: Arc<Sidecar>,
    upstream: Upstream,
    limits: server::Limits,
    closing: CancellationToken,
    over: CancellationToken,
    /// Held while it has connections.
    serving: TaskTrackerToken,
}

impl Running {
    /// Binds both ports and wires everything.
    ///
    /// # Errors
    /// A port cannot be bound, or the backend's address or roots cannot be used.
    pub async fn start(settings: Settings, env: Env) -> anyhow::Result<Running> {
        let ca = settings.upstream.ca_file.as_deref();
        let target = Target::parse(&settings.upstream.url.to_string(), ca)?;
        let bound = |what: &'static str, addr| move || format!("cannot listen on {addr} ({what})");
        let (listen, admin_listen) = (settings.server.listen, settings.server.admin_listen);
        let mut data = env
            .net
            .bind(listen)
            .await
            .with_context(bound("server.listen", listen))?;
        if settings.server.threads > 1 {
            // Bound alone first, so that a port in use is noticed; now again, to be shared.
            let addr = data.local_addr()?;
            drop(data);
            data = env
                .net
                .bind_shared(addr)
                .await
                .with_context(bound("server.listen", addr))?;
        }
        let admin = env
            .net
            .bind(admin_listen)
            .await
            .with_context(bound("server.admin_listen", admin_listen))?;
        let metrics = Metrics::new(settings.metrics.top_keys);
        let proxied = proxy_settings(&settings, env.reset)
            .map_err(|field| anyhow::anyhow!("{field} cannot stand in a header"))?;
        let sidecar = Sidecar::new(
            proxied,
            Arc::clone(&settings.policies),
            Arc::clone(&env.store),
            backend(&settings.upstream),
            metrics.clone(),
            &storage::name(env.seed),
        );
        sidecar.store().declare(settings.store.by_policy.clone());
        sidecar.store().reserve_for(settings.store.reserved.clone());
        let upstream = Upstream::new(target, env.net.clone(), upstream_limits(&settings));
        let reload = Reload::new(settings.clone(), Arc::clone(&sidecar), env.reset);
        Ok(Running {
            settings,
            env,
            sidecar,
            reload,
            following: None,
            upstream,
            readiness: Arc::default(),
            metrics,
            data,
            admin,
            closing: CancellationToken::new(),
            over: CancellationToken::new(),
            serving: TaskTracker::new(),
        })
    }

    /// Follows the file that the settings are from: whenever it changes, and when `ask` is notified, it
    /// is read and put in force; `level` is that of the log.
    pub fn following(mut self, file: config::File, ask: Arc<Notify>, level: LogLevel) -> Running {
        let (reload, metrics) = (self.reload.clone(), self.metrics.clone());
        self.following = Some(Following::new(file, reload, metrics, ask, level));
        self
    }

    /// The means to change settings while it runs.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Where SDKs connect.
    ///
    /// # Errors
    /// The system does not say.
    pub fn addr(&self) -> std::io::Result<SocketAddr> {
        self.data.local_addr()
    }

    /// Where metrics and health are.
    ///
    /// # Errors
    /// The system does not say.
    pub fn admin_addr(&self) -> std::io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// The shares of the threads beyond the first, each to be served on a runtime of its own.
    ///
    /// # Errors
    /// The system does not say which port was bound.
    pub fn threads(&self) -> std::io::Result<Vec<Thread>> {
        let thread = |addr| Thread {
            addr,
            net: self.env.net.clone(),
            sidecar: Arc::clone(&self.sidecar),
            upstream: self.upstream.another(),
            limits: server_limits(&self.settings.server),
            closing: self.closing.clone(),
            over: self.over.clone(),
            serving: self.serving.token(),
        };
        let addr = self.addr()?;
        Ok((1..self.settings.server.threads)
            .map(|_| thread(addr))
            .collect())
    }

    /// Serves until `stop`, drains, and returns when nothing is left to do.
    ///
    /// # Errors
    /// A part of it broke, which is a bug: it has drained all the same.
    pub async fn serve(self, stop: Stop) -> anyhow::Result<()> {
        // However this ends, the other threads end too.
        let _over = self.over.clone().drop_guard();
        let limits = server_limits(&self.settings.server);
        let proxy = Proxy::new(Arc::clone(&self.sidecar), self.upstream);
        let sweeping = CancellationToken::new();
        let metrics = self.metrics;
        let pages = Admin::new(
            Arc::clone(&self.sidecar),
            metrics.clone(),
            Arc::clone(&self.readiness),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(server::serve(
            self.admin,
            pages,
            limits,
            self.closing.clone(),
        ));
        // Before the first FETCH: running jobs have their slots, or a limit would be broken by a restart.
        // A backend that does not answer yet is asked again at each limited FETCH.
        tokio::select! {
            _asked_later = proxy.ensure_learnt() => {}
            () = stop.heard() => {}
        }
        tasks.spawn(server::serve(
            self.data,
            proxy.clone(),
            limits,
            self.closing.clone(),
        ));
        tasks.spawn({
            let (proxy, sweeping) = (proxy.clone(), sweeping.clone());
            async move { proxy.attend(sweeping).await }
        });
        tasks.spawn(follow(self.following, sweeping.clone()));
        tasks.spawn(keep_up(metrics, sweeping.clone()));
        self.readiness.ready();
        tasks.spawn(say_ready(Arc::clone(&self.sidecar), sweeping.clone()));
        let ended = tokio::select! {
            () = stop.heard() => Ok(()),
            broken = broken(&mut tasks) => Err(broken),
        };
        self.readiness.draining();
        let given_back = proxy.sidecar().given_back();
        drain(&proxy, &self.reload.settings().server, &stop).await;
        say_what_is_left(proxy.sidecar(), given_back).await;
        sweeping.cancel();
        proxy.sidecar().events().close();
        self.closing.cancel();
        let closed = async {
            while tasks.join_next().await.is_some() {}
            self.serving.close();
            self.serving.wait().await;
            proxy.sidecar().finished().await;
        };
        tokio::select! {
            _ = tokio::time::timeout(CLOSING, closed) => {}
            () = stop.now.cancelled() => {}
        }
        ended
    }
}

impl Stop {
    /// Ends when it is to end, in order or at once.
    pub async fn heard(&self) {
        tokio::select! {
            () = self.drain.cancelled() => {}
            () = self.now.cancelled() => {}
        }
    }
}

/// Ends when one of the tasks has panicked, and says so.
async fn broken(tasks: &mut JoinSet<()>) -> anyhow::Error {
    loop {
        match tasks.join_next().await {
            Some(Err(error)) => {
                tracing::error!(%error, "a bug: a part of the sidecar broke; draining");
                return anyhow::anyhow!("a bug: a part of the sidecar broke: {error}");
            }
            // The config is followed no more, or never was.
            Some(Ok(())) => {}
            None => std::future::pending().await,
        }
    }
}

/// Drains, for as long as the settings say.
async fn drain(proxy: &Proxy, settings: &config::Server, stop: &Stop) {
    let (least, most) = (settings.drain_min, settings.drain_timeout);
    tokio::select! {
        _ = tokio::time::timeout(most, proxy.drain(least, most)) => {}
        () = stop.now.cancelled() => {}
    }
}

impl Thread {
    /// Serves until the sidecar closes.
    ///
    /// # Errors
    /// The port cannot be bound once more.
    pub async fn serve(self) -> std::io::Result<()> {
        let listener = self.net.bind_shared(self.addr).await?;
        let sidecar = Arc::clone(&self.sidecar);
        let proxy = Proxy::new(self.sidecar, self.upstream);
        let served = async {
            server::serve(listener, proxy, self.limits, self.closing).await;
            drop(self.serving);
            // What clients that hung up have asked for is done here still.
            sidecar.finished().await;
        };
        tokio::select! {
            () = served => {}
            () = self.over.cancelled() => {}
        }
        Ok(())
    }
}

/// Says when it is ready, for which the store must have answered.
async fn say_ready(sidecar: Arc<Sidecar>, stop: CancellationToken) {
    while !sidecar.store().has_answered() {
        let waited = tokio::time::sleep(LOOK);
        if stop.run_until_cancelled(waited).await.is_none() {
            return;
        }
    }
    tracing::info!("ready");
}

/// Keeps what is counted small.
async fn keep_up(metrics: Metrics, stop: CancellationToken) {
    let _stopped = stop.run_until_cancelled(metrics.keep_up()).await;
}

/// Follows the config file, if there is one.
async fn follow(file: Option<Following>, stop: CancellationToken) {
    if let Some(file) = file {
        file.follow(stop).await;
    }
}

/// Says what became of the held jobs, of which so many had been given back before the drain. One that ran out
/// of time, or was cut short, says so.
async fn say_what_is_left(sidecar: &Sidecar, before: u64) {
    let (given_back, left) = (sidecar.given_back() - before, sidecar.held());
    if left > 0 {
        let fate = sidecar.fate_of_held();
        tracing::warn!(
            given_back,
            left,
            "held jobs are left to their claims: {fate}"
        );
    } else if given_back > 0 {
        tracing::info!(given_back, "held jobs were given back to the backend");
    }
    let out = sidecar.out().await;
    if out != Some(0) {
        tracing::warn!(
            out,
            "limited jobs are still out with workers, which now cannot end them through here"
        );
    }
}

// Here and not beside `Proxy`, so that the proxy knows nothing of listeners.
impl server::Service for Proxy {
    fn call(
        &self,
        head: Box<Parts>,
        body: Incoming,
    ) -> impl Future<Output = Response<Body>> + Send {
        self.handle(head, body)
    }

    fn is_urgent(&self, head: &Parts) -> bool {
        Proxy::is_urgent(head)
    }

    fn left_behind(&self, urgent: bool) -> usize {
        self.sidecar().left_behind(urgent)
    }

    fn load(&self) -> Arc<Load> {
        Proxy::load(self)
    }

    fn wants_plain_json(&self, head: &Parts) -> bool {
        Proxy::wants_plain_json(self, head)
    }

    fn leaving(&self, reply: &mut Response<Body>, plain_json: bool) {
        Proxy::leaving(self, reply, plain_json);
    }
}

fn server_limits(settings: &config::Server) -> server::Limits {
    server::Limits {
        header: settings.header_timeout,
        idle: settings.idle_timeout,
        connections: settings.max_connections,
        in_flight: settings.max_in_flight,
        ..server::Limits::default()
    }
}

/// Times and sizes on the way to the backend, by the settings.
pub(crate) fn upstream_limits(settings: &Settings) -> upstream::Limits {
    let default = upstream::Limits::default();
    upstream::Limits {
        connect: settings.upstream.connect_timeout,
        head: settings.upstream.timeout,
        // What may be held must be read, and jobs differ in size.
        reply: default.reply.max(settings.hold.max_bytes.saturating_mul(4)),
        ..default
    }
}

/// What the proxy is told.
///
/// # Errors
/// The field of a token that cannot stand in a header.
fn proxy_settings(settings: &Settings, reset: bool) -> Result<proxy::Settings, &'static str> {
    let header = |field, text: String| match HeaderValue::try_from(text) {
        Ok(mut value) => {
            value.set_sensitive(true);
            Ok(value)
        }
        Err(_) => Err(field),
    };
    let token = settings.upstream.token.as_ref();
    let token = token.map(|token| header("upstream.token", format!("Bearer {}", token.expose())));
    let control_token = settings.server.control_token.as_ref();
    let control_token =
        control_token.map(|token| header("server.control_token", token.expose().to_owned()));
    Ok(proxy::Settings {
        max_wait: settings.fetch.max_wait,
        claim_budget: settings.fetch.claim_budget,
        hold_idle: settings.hold.idle,
        hold_max: settings.hold.max,
        hold_bytes: settings.hold.max_bytes,
        settle_retry_for: settings.settle.retry_for,
        max_body: settings.server.max_body,
        body_timeout: settings.server.body_timeout,
        upstream_timeout: settings.upstream.timeout,
        token: token.transpose()?,
        loopback: settings.server.listen.ip().to_canonical().is_loopback(),
        admin_loopback: settings
            .server
            .admin_listen
            .ip()
            .to_canonical()
            .is_loopback(),
        control_token: control_token.transpose()?,
        trust_tenant_header: settings.server.trust_tenant_header,
        repair_heartbeat: settings.repairs.heartbeat_active_jobs,
        job_beside_jobs: settings.repairs.job_and_jobs,
        repair_paths: settings.repairs.queue_paths,
        media_type: match settings.repairs.media_type {
            MediaType::Auto => Relabel::Auto,
            MediaType::Always => Relabel::Always,
            MediaType::Off => Relabel::Never,
        },
        reset,
        bounds: Arc::clone(&settings.bounds),
        // Those that wait must not keep ACKs out.
        max_blocked: settings.server.max_in_flight / 4,
    })
}

/// What the settings say of the backend.
pub(crate) fn backend(settings: &config::Upstream) -> Backend {
    Backend::new(proxy::Said {
        claims_count: settings.claims_count,
        requeue_harmless: settings.requeue_harmless,
        worker_liveness: settings.worker_liveness,
        from_start: settings.heartbeat_from_start,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_noticed_and_one_that_ends_is_none() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        tasks.spawn(async {
            tokio::task::yield_now().await;
            panic!("on command");
        });
        let why = broken(&mut tasks).await.to_string();
        assert!(why.contains("a bug") && why.contains("on command"), "{why}");
        let looks = tokio::time::timeout(Duration::from_millis(50), broken(&mut tasks));
        assert!(looks.await.is_err(), "nothing else broke");
    }
}
