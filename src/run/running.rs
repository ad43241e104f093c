//! A run from its start to the end of its drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::reload::{self, Following, LogLevel, Reload};
use super::storage;
use super::surroundings::{Env, Stop};
use crate::admin::Admin;
use crate::config::{self, BaseUrl, Settings};
use crate::desk::process::host;
use crate::desk::{BackendFacts, Proxy, ProxySettings, Sidecar};
use crate::egress::Egress;
use crate::inquiry::adopt;
use crate::jobs::sweep::{self, give_back};
use crate::net::{Listener, Net, Probes};
use crate::server;
use crate::show::state::SidecarFacts;
use crate::store::LedgerExt;
use crate::tls::ClientFiles;
use crate::told::metrics::Metrics;
use crate::wire::boxed;
use crate::wire::upstream::{self, Target, Upstream};

/// How long connections may take to end after the drain.
const CLOSING: Duration = Duration::from_secs(3);

/// The most connections of callers that one entry has in a thread. Each may need one to the service.
const CALLERS: usize = 2_000;

/// How often a start looks whether the store has answered for the first time, or a port has become free.
const LOOK: Duration = Duration::from_millis(100);

/// A bound and wired sidecar that does not serve yet.
#[derive(Debug)]
pub struct Running {
    env: Env,
    sidecar: Arc<Sidecar>,
    upstream: Upstream,
    metrics: Metrics,
    /// `None`: there is no backend, and so nothing for SDKs of jobs.
    data: Option<Listener>,
    admin: Listener,
    /// The listeners for calls, in the order of the file.
    egress: Vec<(Listener, Egress)>,
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
    addr: Option<SocketAddr>,
    egress: Vec<(SocketAddr, Egress)>,
    net: Net,
    sidecar: Arc<Sidecar>,
    upstream: Upstream,
    limits: server::ListenerBounds,
    closing: CancellationToken,
    over: CancellationToken,
    /// Held while the thread has connections.
    serving: TaskTrackerToken,
}

impl Running {
    /// Binds both ports and wires everything. A port in use is waited for, for up to `server.drain_timeout`.
    ///
    /// # Errors
    /// A port cannot be bound, or the backend's address or roots cannot be used.
    pub async fn start(settings: Settings, env: Env) -> anyhow::Result<Running> {
        let target = target(&settings.upstream)?;
        let server = &settings.server;
        let data = match settings.calls_only() {
            true => None,
            false => {
                Some(bind_for_threads(&env.net, "server.listen", server.listen, server).await?)
            }
        };
        let admin = bind(
            &env.net,
            "server.admin_listen",
            server.admin_listen,
            server.drain_timeout,
        )
        .await?;
        let metrics = Metrics::new(settings.metrics.top_keys);
        if settings.calls_only() {
            metrics.show_calls_only();
        }
        let settings = Arc::new(settings);
        let mut proxied = ProxySettings::new(Arc::clone(&settings), env.reset)
            .map_err(|field| anyhow::anyhow!("{field} cannot stand in a header"))?;
        if let Some(data) = &data
            && proxied.worker_id.is_none()
            && matches!(env.net, Net::Tcp)
        {
            proxied.worker_id = stable_worker_id(data.local_addr()?.port());
        }
        let name = storage::name(env.seed);
        let sidecar = Sidecar::new(
            proxied,
            Arc::clone(&settings.policies),
            env.store.clone(),
            BackendFacts::new(&settings.upstream),
            metrics.clone(),
            &name,
        );
        reload::tell_store(&sidecar, &settings);
        let upstream = Upstream::new(target, env.net.clone(), call_bounds(&settings)).via(&name);
        let reload = Reload::new(Arc::clone(&sidecar), env.reset);
        let egress = bind_egress(&env, &settings, &sidecar, &name).await?;
        let listeners = egress.iter().map(|(of, _)| of).chain(&data).chain([&admin]);
        let ports = listeners.filter_map(|of| Some(of.local_addr().ok()?.port()));
        // Nobody else sets them.
        let _first = sidecar.calling.own_ports.set(ports.collect());
        Ok(Running {
            env,
            egress,
            sidecar,
            reload,
            following: None,
            upstream,
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
    pub fn following(
        mut self,
        file: config::ConfigFile,
        ask: Arc<Notify>,
        level: LogLevel,
    ) -> Running {
        let (reload, metrics) = (self.reload.clone(), self.metrics.clone());
        self.sidecar.file.follow(&file.path.display().to_string());
        self.following = Some(Following::new(file, reload, metrics, ask, level));
        self
    }

    /// The means to change settings while it runs.
    pub fn reload(&self) -> Reload {
        self.reload.clone()
    }

    /// Where SDKs connect, if there is a backend.
    ///
    /// # Errors
    /// The system does not say.
    pub fn addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.data.as_ref().map(Listener::local_addr).transpose()
    }

    /// Where metrics and health are.
    ///
    /// # Errors
    /// The system does not say.
    pub fn admin_addr(&self) -> std::io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Where callers connect, in the order of the file.
    ///
    /// # Errors
    /// The system does not say.
    pub fn egress_addrs(&self) -> std::io::Result<Vec<SocketAddr>> {
        let each = self.egress.iter();
        each.map(|(listener, _)| listener.local_addr()).collect()
    }

    /// The shares of the threads beyond the first, each to be served on a runtime of its own.
    ///
    /// # Errors
    /// The system does not say which port was bound.
    pub fn threads(&self) -> std::io::Result<Vec<Thread>> {
        let settings = self.reload.settings();
        let addrs = self.egress_addrs()?;
        let ways = addrs.iter().zip(&self.egress);
        let thread = |addr| Thread {
            addr,
            egress: ways
                .clone()
                .map(|(addr, (_, of))| (*addr, of.another()))
                .collect(),
            net: self.env.net.clone(),
            sidecar: Arc::clone(&self.sidecar),
            upstream: self.upstream.another(),
            limits: listener_bounds(&settings.server),
            closing: self.closing.clone(),
            over: self.over.clone(),
            serving: self.serving.token(),
        };
        let addr = self.addr()?;
        Ok((1..settings.server.threads).map(|_| thread(addr)).collect())
    }

    /// What the page says of this sidecar.
    fn facts(&self) -> std::io::Result<SidecarFacts> {
        let settings = self.reload.settings();
        let egress = self.egress_addrs()?;
        let listens = match self.addr()? {
            Some(data) => data.to_string(),
            None => {
                let egress: Vec<_> = egress.iter().map(SocketAddr::to_string).collect();
                egress.join(", ")
            }
        };
        let backend = settings.upstream.url.as_ref();
        let backend = backend.map(|url| url.to_string().into());
        Ok(SidecarFacts {
            listens: listens.into(),
            store: settings.store.url.kind(),
            backend,
        })
    }

    /// Serves until `stop`, drains, and returns when nothing is left to do.
    ///
    /// # Errors
    /// A part of it broke, which is a bug: it has drained all the same.
    pub async fn serve(self, stop: Stop) -> anyhow::Result<()> {
        // However this ends, the other threads end too.
        let _over = self.over.clone().drop_guard();
        let limits = listener_bounds(&self.reload.settings().server);
        let facts = self.facts()?;
        let proxy = Proxy::new(Arc::clone(&self.sidecar), self.upstream);
        let sweeping = CancellationToken::new();
        let metrics = self.metrics;
        let pages = Admin::new(proxy.clone(), metrics.clone(), facts);
        let mut tasks = JoinSet::new();
        let closing = || self.closing.clone();
        let of_calls = || proxy.sidecar.calling.ports_free.clone();
        let ends = match &self.data {
            Some(_) => closing(),
            None => of_calls(),
        };
        let admin = server::serve(self.admin, pages, limits, ends);
        tasks.spawn(boxed::work(admin));
        if let Some(data) = self.data {
            // Before the first FETCH: running jobs have their slots, or a limit would be broken by a restart.
            // A backend that does not answer yet is asked again at each limited FETCH.
            tokio::select! {
                _asked_later = adopt::ensure_learnt(&proxy) => {}
                () = stop.heard() => {}
            }
            let data = server::serve(data, proxy.clone(), limits, closing());
            tasks.spawn(boxed::work(data));
        }
        for (listener, egress) in self.egress {
            let calls = server::serve(listener, egress, call_limits(limits), of_calls());
            tasks.spawn(boxed::work(calls));
        }
        let (attending, until) = (proxy.clone(), sweeping.clone());
        let attend = async move { sweep::attend(&attending, until).await };
        tasks.spawn(boxed::work(attend));
        if let Some(file) = self.following {
            tasks.spawn(boxed::work(file.follow(sweeping.clone())));
        }
        let stopped = sweeping.clone();
        // Keeps histograms from growing with every sample.
        tasks.spawn(boxed::work(async move {
            let _stopped = stopped.run_until_cancelled(metrics.keep_up()).await;
        }));
        self.sidecar.readiness.ready();
        let ready = say_ready(Arc::clone(&self.sidecar), sweeping.clone());
        tasks.spawn(boxed::work(ready));
        let ended = tokio::select! {
            () = stop.heard() => Ok(()),
            broken = broken(&mut tasks) => Err(broken),
        };
        self.sidecar.readiness.draining();
        let given_back = give_back::given_back(&proxy.sidecar);
        drain(&proxy, &self.reload.settings().server, &stop).await;
        proxy.sidecar.close_calls();
        say_what_is_left(&proxy.sidecar, given_back).await;
        sweeping.cancel();
        proxy.sidecar.events.close();
        self.closing.cancel();
        proxy.sidecar.calling.ports_free.cancel();
        close(tasks, &self.serving, &proxy.sidecar, &stop).await;
        ended
    }
}

/// Waits until nothing is left to do, for [`CLOSING`] at most.
async fn close(mut tasks: JoinSet<()>, serving: &TaskTracker, sidecar: &Sidecar, stop: &Stop) {
    let closed = async {
        while tasks.join_next().await.is_some() {}
        serving.close();
        serving.wait().await;
        sidecar.finished().await;
    };
    tokio::select! {
        _ = tokio::time::timeout(CLOSING, closed) => {}
        () = stop.now.cancelled() => {}
    }
}

/// Binds a port. A predecessor that still drains keeps its ports until it ends, so a port in use is tried again until
/// `patience` is over: as long as such a drain may take.
///
/// # Errors
/// The port cannot be bound; the message names the `setting`, or the option.
pub async fn bind(
    net: &Net,
    setting: &'static str,
    addr: SocketAddr,
    patience: Duration,
) -> anyhow::Result<Listener> {
    let in_use = |bound: &io::Result<Listener>| {
        let failed = bound.as_ref().err();
        failed.is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    let option = match setting {
        "egress.listen" => "`listen` of the entry, or --listen of `egress`,".to_owned(),
        setting => setting.replace("server.", "--").replace('_', "-"),
    };
    let mut bound = net.bind(addr).await;
    if in_use(&bound) {
        tracing::warn!(
            id = %"port_in_use",
            "{addr} ({setting}) is in use: waiting up to {patience:?} (server.drain_timeout) for a predecessor that \
             may still drain; {option} takes another port"
        );
        let deadline = Instant::now() + patience;
        while in_use(&bound) && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
            bound = net.bind(addr).await;
        }
    }
    let denied = bound.as_ref().err().map(io::Error::kind) == Some(io::ErrorKind::PermissionDenied);
    let still = match in_use(&bound) {
        true => format!(
            ": another process had the port for {patience:?} (server.drain_timeout); {option} takes another"
        ),
        false if denied => {
            format!(": ports below 1024 need root or CAP_NET_BIND_SERVICE; {option} takes another")
        }
        false => String::new(),
    };
    bound.with_context(|| format!("cannot listen on {addr} ({setting}){still}"))
}

/// Binds a port that all threads share.
///
/// # Errors
/// As [`bind`].
async fn bind_for_threads(
    net: &Net,
    setting: &'static str,
    addr: SocketAddr,
    server: &config::ServerSettings,
) -> anyhow::Result<Listener> {
    let listener = bind(net, setting, addr, server.drain_timeout).await?;
    if server.threads == 1 {
        return Ok(listener);
    }
    // Bound alone first, so that a port in use is noticed; now again, to be shared.
    let addr = listener.local_addr()?;
    drop(listener);
    let shared = net.bind_shared(addr).await;
    shared.with_context(|| format!("cannot listen on {addr} ({setting})"))
}

/// Binds the port of each `[[egress]]`, with the vendor behind it.
///
/// # Errors
/// A port cannot be bound, or a vendor's address or roots cannot be used.
async fn bind_egress(
    env: &Env,
    settings: &Settings,
    sidecar: &Arc<Sidecar>,
    name: &str,
) -> anyhow::Result<Vec<(Listener, Egress)>> {
    let (net, server) = (&env.net, &settings.server);
    let mut ways = Vec::new();
    for (nth, entry) in settings.egress.iter().enumerate() {
        let listener = bind_for_threads(net, "egress.listen", entry.listen, server).await?;
        let target = egress_target(entry)?;
        let upstream = Upstream::new(target, net.clone(), egress_bounds(settings));
        // A call may go through several entries and the data port: only the same one again is a loop.
        let upstream = upstream.via(&format!("{nth}.{name}"));
        let upstream = upstream.of_egress(Arc::clone(&entry.name));
        let service = Egress::new(Arc::clone(sidecar), Arc::clone(&entry.name), upstream);
        ways.push((listener, service));
    }
    Ok(ways)
}

/// The service behind a way out.
///
/// # Errors
/// Its address or roots cannot be used.
pub(crate) fn egress_target(entry: &config::EgressSettings) -> anyhow::Result<Target> {
    let files = ClientFiles {
        ca: entry.ca_file.clone(),
        ..ClientFiles::default()
    };
    // Where calls name the service, this is no address: the target says how one is called.
    let url = entry.upstream.clone().unwrap_or_else(|| BaseUrl {
        tls: entry.hosts.as_ref().is_some_and(|hosts| hosts.tls),
        host: "hosts.invalid".to_owned(),
        ..BaseUrl::default()
    });
    let target = Target::new(url, files);
    target.with_context(|| format!("egress {:?}", entry.name))
}

/// Waits until one of the tasks panics.
async fn broken(tasks: &mut JoinSet<()>) -> anyhow::Error {
    loop {
        match tasks.join_next().await {
            Some(Err(error)) => {
                tracing::error!(id = %"part_broke", %error, "a bug: a part of the sidecar broke; draining");
                return anyhow::anyhow!("a bug: a part of the sidecar broke: {error}");
            }
            // The config is not followed any longer.
            Some(Ok(())) => {}
            None => std::future::pending().await,
        }
    }
}

/// Drains, for as long as the settings say.
async fn drain(proxy: &Proxy, settings: &config::ServerSettings, stop: &Stop) {
    let (least, most) = (settings.drain_min, settings.drain_timeout);
    tokio::select! {
        _ = tokio::time::timeout(most, give_back::drain(proxy, least, most)) => {}
        () = stop.now.cancelled() => {}
    }
}

impl Thread {
    /// Serves until the sidecar closes.
    ///
    /// # Errors
    /// The port cannot be bound once more.
    pub async fn serve(self) -> std::io::Result<()> {
        let sidecar = Arc::clone(&self.sidecar);
        let mut serving = JoinSet::new();
        if let Some(addr) = self.addr {
            let listener = self.net.bind_shared(addr).await?;
            let proxy = Proxy::new(self.sidecar, self.upstream);
            let data = server::serve(listener, proxy, self.limits, self.closing.clone());
            serving.spawn(boxed::work(data));
        }
        for (addr, egress) in self.egress {
            let listener = self.net.bind_shared(addr).await?;
            let free = sidecar.calling.ports_free.clone();
            let calls = server::serve(listener, egress, call_limits(self.limits), free);
            serving.spawn(boxed::work(calls));
        }
        let served = async {
            while serving.join_next().await.is_some() {}
            drop(self.serving);
            // Requests of clients that hung up are carried out all the same.
            sidecar.finished().await;
        };
        tokio::select! {
            () = served => {}
            () = self.over.cancelled() => {}
        }
        Ok(())
    }
}

/// Logs that the sidecar is ready, once the store has answered and nothing answers in place of the backend.
async fn say_ready(sidecar: Arc<Sidecar>, stop: CancellationToken) {
    while !sidecar.store.has_answered() || sidecar.backend.stranger().is_some() {
        let waited = tokio::time::sleep(LOOK);
        if stop.run_until_cancelled(waited).await.is_none() {
            return;
        }
    }
    tracing::info!("ready");
}

/// Logs what this process leaves: held jobs, what is out, and what was set by hand. `before` had been given back when the drain began.
async fn say_what_is_left(sidecar: &Sidecar, before: u64) {
    let (given_back, left) = (give_back::given_back(sidecar) - before, sidecar.hold.len());
    if left > 0 {
        let fate = give_back::fate_of_held(sidecar);
        tracing::warn!(
            id = %"held_jobs_left",
            given_back,
            left,
            jobs = give_back::some_held(sidecar),
            "held jobs are left to their claims: {fate}"
        );
    } else if given_back > 0 {
        tracing::info!(given_back, "held jobs were given back to the backend");
    }
    let out = give_back::out(sidecar).await;
    if out != Some(0) {
        let calls = sidecar.calling.out();
        tracing::warn!(
            id = %"running_jobs_left",
            out = out.map(|out| out.saturating_sub(calls)),
            calls = (calls > 0).then_some(calls),
            "jobs or calls are still out: workers cannot end these jobs through here any more, and these calls are cut off"
        );
    }
    let set = sidecar.store.overrides().len();
    if set > 0 && !sidecar.store.is_shared() {
        tracing::warn!(id = %"overrides_end", overrides = set, "limits and pauses that were set by hand end with this process: the store is memory");
    }
}

fn listener_bounds(settings: &config::ServerSettings) -> server::ListenerBounds {
    server::ListenerBounds {
        header: settings.header_timeout,
        idle: settings.idle_timeout,
        connections: settings.max_connections,
        in_flight: settings.max_in_flight,
        adds_forwarded: settings.adds_forwarded,
        ..server::ListenerBounds::default()
    }
}

/// Bounds of a listener for calls. How many of them wait is bounded by `max_waiting`, and they say nothing of who made
/// them.
fn call_limits(of_data: server::ListenerBounds) -> server::ListenerBounds {
    server::ListenerBounds {
        connections: of_data.connections.min(CALLERS),
        in_flight: usize::MAX,
        adds_forwarded: false,
        ..of_data
    }
}

/// The backend, and who we are to it.
pub(crate) fn target(settings: &config::UpstreamSettings) -> anyhow::Result<Target> {
    let files = ClientFiles {
        ca: settings.ca_file.clone(),
        cert: settings.client_cert_file.clone(),
        key: settings.client_key_file.clone(),
    };
    // Where there is none, nobody calls it.
    let url = settings.url.clone().unwrap_or_default();
    Target::new(url, files).context("upstream")
}

/// The timeouts and sizes of calls to the backend.
pub(crate) fn call_bounds(settings: &Settings) -> upstream::CallBounds {
    let default = upstream::CallBounds::default();
    upstream::CallBounds {
        connect: settings.upstream.connect_timeout,
        idle: settings.upstream.idle_timeout,
        head: settings.upstream.timeout,
        body: settings.upstream.timeout,
        // A reply is read whole before its jobs are held, and jobs differ in size.
        reply: default.reply.max(settings.hold.max_bytes.saturating_mul(4)),
        ..default
    }
}

/// The timeouts of calls to services, some of which think for minutes: callers have timeouts of their own. One without
/// any must not have a slot for ever, and one that stops within its body has it no longer than a request would.
fn egress_bounds(settings: &Settings) -> upstream::CallBounds {
    let silence = Duration::from_secs(600);
    upstream::CallBounds {
        probes: Probes::OF_SERVICES,
        head: silence,
        silence: Some(silence),
        ..call_bounds(settings)
    }
}

/// A worker id that stays over restarts: jobs that ran under it before one are settled under it afterwards. `None`: the
/// host has no name.
fn stable_worker_id(port: u16) -> Option<String> {
    host().map(|host| format!("{}{host}-{port}", crate::store::NAMES))
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
