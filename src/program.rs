//! The program: arguments, log, runtimes, signals, exit status. Nothing else may end the process.
//!
//! It stands in the library, so that its async code is compiled once: the binary calls [`main`] and has nothing else.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ask::{self, AdminPlace, AdminPort, AskError};
use crate::backend::{Backend, Lax};
use crate::cli::{
    self, ADMIN, AdminArgs, CONFIG, Check, Cli, Command, Demo, Dev, Doctor, EgressArgs,
    Healthcheck, RunArgs, Scene, TOKEN,
};
use crate::config::{
    self, BackendAt, Colours, CommandLine, LogFormat, Report, Secret, Settings, StoreUrl,
};
use crate::demo::{self, Enforcement, Options};
use crate::doctor;
use crate::life;
use crate::log::Lines;
use crate::net::{Listener, Net};
use crate::otlp::{self, Traces};
use crate::run::{Env, LogLevel, Running, Stop, Thread, bind, open_store};
use crate::store::Clock;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::wire::traces;
use crate::wire::upstream::{BaseUrl, without_login};
use anyhow::Context;
use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use clap_complete::CompleteEnv;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, registry, reload};

/// The exit status for wrong arguments, the same as clap's.
const WRONG_ARGUMENTS: u8 = 2;
/// The exit status for a config that cannot be used (`EX_CONFIG`).
const BAD_CONFIG: u8 = 78;

/// The running log. The last lines are written before the process ends.
static LINES: OnceLock<Lines> = OnceLock::new();
/// How long a slow reader of the log may delay the end of the process, and a thread that panics.
const LAST_LINES: Duration = Duration::from_secs(1);
const PANIC_LINES: Duration = Duration::from_millis(100);

/// How long the thread for blocking work stays, and how often the clock is checked.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const CLOCK_LOOK: Duration = Duration::from_secs(10);
/// How long whoever completes a word waits.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Does what the arguments say, and gives the exit status.
pub fn main() -> ExitCode {
    CompleteEnv::with_factory(|| cli::completing(keys))
        .var(cli::COMPLETE)
        .complete();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            match masked(&error) {
                Some(text) => tell(&text),
                // Whoever reads (`head`) may have left: no error of ours.
                None => drop(error.print()),
            }
            if error.use_stderr() && std::env::var_os(CONFIG).is_some_and(|path| path.is_empty()) {
                tell(&format!(
                    "{CONFIG} is set, and empty: unset it, or let it name a file"
                ));
            }
            return match error.use_stderr() {
                true => ExitCode::from(WRONG_ARGUMENTS),
                false => ExitCode::SUCCESS,
            };
        }
    };
    let code = match act(cli.command) {
        Ok(code) => code,
        Err(error) => fail(&error),
    };
    flush(LAST_LINES);
    code
}

/// What is wrong with an argument, without the password that stands in its URL; `None`: none does.
fn masked(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    let shown = without_login(value);
    (shown != *value).then(|| error.render().to_string().replace(value.as_str(), &shown))
}

/// Says why the program ends, and gives the exit status. A wrong config is shown with every problem of it.
fn fail(error: &anyhow::Error) -> ExitCode {
    if let Some(report) = error.downcast_ref::<Report>() {
        tell(&report.render(colours_of(&std::io::stderr())));
        return ExitCode::from(BAD_CONFIG);
    }
    // If the log runs, the error goes to it, in its own format.
    match tracing::dispatcher::has_been_set() {
        true => tracing::error!(id = %"start_failed", "{error:#}"),
        false => tell(&format!("ojs-throttle: {error:#}")),
    }
    ExitCode::FAILURE
}

/// Waits until the log is written, for at most `within`.
fn flush(within: Duration) {
    if let Some(lines) = LINES.get() {
        lines.flush(within);
    }
}

fn act(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run(&args),
        Command::Egress(args) => egress(&args),
        Command::Dev(args) => dev(&args),
        Command::Check(args) => Ok(check(&args)),
        Command::Doctor(args) => examine(&args),
        Command::Why(args) => ask(&args.admin, async |port| {
            let answer = port.get(&ask::why_path(args.question())).await?;
            Ok(match args.json {
                true => format!("{answer}\n"),
                false => ask::addressed(&ask::why_text(&answer), &args.admin),
            })
        }),
        Command::Top(args) => ask(&args.admin, async |port| {
            let mut out = std::io::stdout();
            ask::top(port, &args, out.is_terminal(), &mut out).await
        }),
        Command::Slots(of) => ask(&of.admin, async |port| ask::slots(port, &of).await),
        Command::Pause(args) => ask(&args.of.admin, async |port| {
            ask::pause(port, &args, unix_micros()).await
        }),
        Command::Resume(of) => ask(&of.admin, async |port| ask::resume(port, &of).await),
        Command::Limit(args) => ask(&args.of.admin, async |port| {
            ask::limit(port, &args, unix_micros()).await
        }),
        Command::Clear(args) => ask(&args.of.admin, async |port| ask::clear(port, &args).await),
        Command::Subqueues(args) => ask(&args.admin(), async |port| {
            ask::subqueues(port, &args).await
        }),
        Command::Demo(args) => demo(&args),
        Command::Healthcheck(args) => healthcheck(&args),
        Command::Example { name, shell } => Ok(say(cli::example(name.as_deref(), shell))),
        Command::Schema { of } => Ok(say(Ok(of.text().to_owned()))),
        Command::Help { word } => Ok(say(cli::help(word.as_deref()))),
    }
}

/// Says what each file means, or what is wrong with it.
fn check(args: &Check) -> ExitCode {
    let colours = colours_of(&std::io::stdout());
    let overrides = CommandLine::of_environment();
    let mut status = 0;
    let variable = std::env::var_os(CONFIG);
    let is_own = |path: &&PathBuf| variable.as_deref() != Some(path.as_os_str());
    let config = (args.config.iter()).filter(|path| args.paths.is_empty() || is_own(path));
    let paths: Vec<&PathBuf> = args.paths.iter().chain(config).collect();
    for path in &paths {
        let checked = config::check(path, &overrides, colours);
        status = status.max(checked.status);
        let text = match args.json {
            true => checked.json,
            false if paths.len() > 1 => format!("{}:\n{}", path.display(), checked.text),
            false => checked.text,
        };
        print(&format!("{text}\n"));
    }
    ExitCode::from(status)
}

/// Writes to whoever reads. That one (`head`) may have left: no error of ours.
fn print(text: &str) {
    let _written = std::io::stdout().write_all(text.as_bytes());
}

/// Prints a text that was asked for, or that there is none.
fn say(text: Result<String, clap::Error>) -> ExitCode {
    match text {
        Ok(text) => {
            print(&format!("{}\n", text.trim_end()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _printed = error.print();
            ExitCode::from(WRONG_ARGUMENTS)
        }
    }
}

/// Asks a running sidecar whether it is ready.
fn healthcheck(args: &Healthcheck) -> anyhow::Result<ExitCode> {
    // The image names a file, and a container of `egress` has none.
    let has_file = args.config.as_ref().is_some_and(|path| path.exists());
    let of_environment = || variable(ADMIN).filter(|_| !has_file);
    let said = args.admin.clone().filter(|url| !url.is_empty());
    let place = match said.or_else(of_environment) {
        Some(url) => at(url),
        None => {
            // The exit status is no matter of the file.
            let file = of_file(args.config.as_deref());
            let mut place = file.map_err(|report| anyhow::anyhow!("{report}"))?.0;
            place.trusts_any = true;
            place
        }
    };
    let runtime = runtime()?;
    let port = AdminPort::new(&place, None)?;
    let answer = runtime.block_on(port.call(http::Method::GET, "/readyz", None));
    runtime.shutdown_background();
    answer
        .map(|_| ExitCode::SUCCESS)
        .map_err(anyhow::Error::new)
}

fn at(url: String) -> AdminPlace {
    AdminPlace {
        url,
        ..AdminPlace::default()
    }
}

/// Where the file says that the admin port is, and the control token. A running sidecar has nothing of what is wrong in
/// the file, so what can be read of it counts, and the rest is told.
fn of_file(path: Option<&Path>) -> Result<(AdminPlace, Option<Secret>), Report> {
    let read = |path| Settings::as_far_as_read(path, &CommandLine::of_environment());
    let (mut path, mut found) = (path, read(path));
    if let Err(report) = &found
        && variable("OJS_THROTTLE_ADMIN_LISTEN").is_some()
    {
        tell(&report.to_string());
        (path, found) = (None, read(None));
    }
    let (settings, wrong) = found?;
    let mut place = ask::place_of(&settings.server);
    if let Some(path) = path.filter(|_| wrong.errors() > 0) {
        let (path, wrong) = (path.display(), format!("{wrong:?}"));
        // It wants TLS, by files that cannot be used here.
        if wrong.contains("`server.admin_tls") {
            place.url = place.url.replacen("http://", "https://", 1);
        }
        tell(&format!(
            "ojs-throttle: {path} is wrong, and what can be read of it counts: {wrong}"
        ));
    }
    Ok((place, settings.server.control_token))
}

/// Asks a running sidecar, and prints what comes of it.
fn ask(
    admin: &AdminArgs,
    asks: impl AsyncFnOnce(&AdminPort) -> Result<String, AskError>,
) -> anyhow::Result<ExitCode> {
    let (place, token) = admin_port(admin)?;
    let runtime = runtime()?;
    let port = AdminPort::new(&place, token.as_deref());
    let answer = port.and_then(|port| runtime.block_on(asks(&port)));
    runtime.shutdown_background();
    let text = match answer {
        Ok(text) => text,
        Err(error) => {
            tell(&format!("ojs-throttle: {error}"));
            return Ok(ExitCode::from(error.exit_status()));
        }
    };
    print(&text);
    Ok(ExitCode::SUCCESS)
}

/// The keys that begin so, for a shell: those of the sidecar that the environment names, if it answers at once.
fn keys(begun: &str) -> Vec<String> {
    let url = variable(ADMIN).unwrap_or_else(|| ask::DEFAULT.to_owned());
    let port = AdminPort::new(&at(url), None);
    let (Ok(port), Ok(runtime)) = (port, runtime()) else {
        return Vec::new();
    };
    let asked = async { tokio::time::timeout(AT_ONCE, ask::keys(&port, begun)).await };
    let keys = runtime.block_on(asked).unwrap_or_default();
    runtime.shutdown_background();
    keys
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Where the admin port is, and the control token: what the arguments say, else the file, else the environment.
fn admin_port(args: &AdminArgs) -> anyhow::Result<(AdminPlace, Option<String>)> {
    let (mut file, by_variable) = ((None, None), variable(ADMIN));
    match args.config.as_deref().map(|path| of_file(Some(path))) {
        Some(Ok((place, token))) => file = (Some(place), token),
        Some(Err(report)) if args.admin.is_none() && by_variable.is_none() => {
            return Err(report.into());
        }
        Some(Err(report)) => tell(&report.to_string()),
        None => {}
    }
    let by_option = args.admin.clone().map(at);
    let place = by_option.or(file.0).or(by_variable.map(at));
    let place = place.unwrap_or_else(|| at(ask::DEFAULT.to_owned()));
    let token = file.1.map(|token| token.expose().to_owned());
    Ok((place, token.or_else(|| variable(TOKEN))))
}

fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let (runtime, mut signals) = watched_runtime()?;
    let overrides = args.overrides();
    let Some(settings) = load(&runtime, &mut signals, args.config.as_deref(), &overrides)? else {
        runtime.shutdown_background();
        return Ok(ExitCode::SUCCESS);
    };
    let file = args.config.as_deref().map(|path| (path, overrides));
    start(runtime, signals, settings, file, None)
}

/// Runs a sidecar without a backend by the file that its arguments stand for.
fn egress(args: &EgressArgs) -> anyhow::Result<ExitCode> {
    let (runtime, signals) = watched_runtime()?;
    let text = args.file();
    let overrides = CommandLine {
        control_token: variable(TOKEN).map(Secret::new),
        ..args.overrides()
    };
    let settings = Settings::parse_with(&text, "ojs-throttle egress --print", &overrides)?;
    if args.print {
        print(&text);
        return Ok(ExitCode::SUCCESS);
    }
    start(runtime, signals, settings, None, None)
}

fn dev(args: &Dev) -> anyhow::Result<ExitCode> {
    let (runtime, signals) = watched_runtime()?;
    // At once, for the number of a port 0 stands in the settings. One in use is waited for, once the log runs.
    let listen = args.backend_listen;
    let bound = runtime.block_on(Net::Tcp.bind(listen)).ok();
    let bound_at = bound.as_ref().and_then(|bound| bound.local_addr().ok());
    let backend: Result<BaseUrl, String> = format!("http://{}", bound_at.unwrap_or(listen)).parse();
    let token = variable(TOKEN).unwrap_or_else(|| format!("{:016x}", seed()));
    let mut overrides = CommandLine {
        listen: Some(args.listen),
        admin_listen: args.admin_listen,
        upstream: Some(BackendAt(Some(backend.map_err(anyhow::Error::msg)?))),
        // No load balancer stands in front of `dev`, and whoever ends it waits for the prompt.
        drain_min: Some(Duration::ZERO),
        control_token: Some(Secret::new(&*token)),
        ..CommandLine::of_environment()
    };
    let mut settings = Settings::load_with(args.config.as_deref(), &overrides)?;
    // A file of production names production's store, in which each slot and each pause would be real.
    let url = &settings.store.url;
    if matches!(url, StoreUrl::Redis(_) | StoreUrl::Postgres(_)) {
        overrides.no_network_store = true;
        settings.store.url = StoreUrl::Memory;
        tell("dev counts in memory: store.url is left alone");
    }
    let is_ours = settings.server.control_token == overrides.control_token;
    if is_ours && variable(TOKEN).is_none() {
        tell(&format!("to change limits by hand: export {TOKEN}={token}"));
    }
    let file = args.config.as_deref().map(|path| (path, overrides));
    start(runtime, signals, settings, file, Some((listen, bound)))
}

/// Runs the sidecar until it is told to end. It follows `file`, if there is one; a `backend` in memory serves as long, at
/// its address, which may be bound already.
fn start(
    runtime: Runtime,
    signals: Signals,
    settings: Settings,
    file: Option<(&Path, CommandLine)>,
    backend: Option<(SocketAddr, Option<Listener>)>,
) -> anyhow::Result<ExitCode> {
    let endpoint = settings.traces.endpoint.as_ref().map(BaseUrl::to_string);
    let traces = otlp::start(endpoint.as_deref())?;
    let level = start_log(&settings.server, traces.as_ref())?;
    otlp::warn_of_ignored(endpoint.as_deref());
    warn(&settings);
    let file = file.and_then(|(path, overrides)| followed(path, overrides));
    let served = runtime.block_on(async {
        let stop = Stop::default();
        let hangup = heed(signals, stop.clone(), file.as_ref());
        let file = file.map(|file| (file, hangup, level));
        // A reset would be one of all who share the store.
        let reset = backend.is_some() && matches!(settings.store.url, StoreUrl::Memory);
        let Some((listen, bound)) = backend else {
            return serve(settings, file, reset, stop).await;
        };
        let patience = settings.server.drain_timeout;
        let listener = match bound {
            Some(listener) => listener,
            None => tokio::select! {
                bound = bind(&Net::Tcp, "--backend-listen", listen, patience) => bound?,
                () = stop.heard() => {
                    tracing::info!("stopped before the ports were free");
                    return Ok(());
                }
            },
        };
        let (address, ended) = (listener.local_addr()?, CancellationToken::new());
        let backend = Backend::new(Lax::spec(), seed()).serve(listener, ended.clone());
        let serving = tokio::spawn(backend);
        tracing::info!(%address, "backend in memory: its jobs are gone when this ends");
        serve(settings, file, reset, stop).await?;
        ended.cancel();
        // An open request must not keep the process: nothing is stored anyway.
        let _open = tokio::time::timeout(Duration::from_secs(1), serving).await;
        Ok(())
    });
    // A disk that does not answer must not keep the process.
    runtime.shutdown_background();
    if let Some(traces) = traces {
        traces.end();
    }
    served.map(|()| ExitCode::SUCCESS)
}

fn examine(args: &Doctor) -> anyhow::Result<ExitCode> {
    let (runtime, mut signals) = watched_runtime()?;
    let (file, overrides) = (args.config.as_deref(), args.overrides());
    let Some(settings) = load(&runtime, &mut signals, file, &overrides)? else {
        runtime.shutdown_background();
        anyhow::bail!("told to end before the config was read");
    };
    let stop = CancellationToken::new();
    let env = doctor::DoctorEnv {
        stop: stop.clone(),
        net: Net::Tcp,
        clock: Clock::new(unix_micros()),
        seed: seed(),
        probe: args.probe,
        host: args.host.clone(),
    };
    let report = runtime.block_on(async {
        let mut examining = pin!(doctor::examine(&settings, env));
        tokio::select! {
            report = &mut examining => return Ok(report),
            () = signals.any() => stop.cancel(),
        }
        if args.probe {
            // Its jobs go first, unless somebody cannot wait for that.
            tokio::select! {
                _report = examining => {}
                () = signals.any() => {}
            }
        }
        anyhow::bail!("told to end before everything was looked at")
    });
    // A look-up of a name that gets no answer must not keep the process.
    runtime.shutdown_background();
    let report = report?;
    let text = match args.json {
        true => report.json(),
        false => report.text(),
    };
    print(&text);
    Ok(match report.healthy() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn demo(args: &Demo) -> anyhow::Result<ExitCode> {
    if args.scene != Scene::Limits && args.record.is_some() {
        tell("ojs-throttle: only `demo limits` draws a plot: leave out --record");
        return Ok(ExitCode::from(WRONG_ARGUMENTS));
    }
    let options = Options {
        scene: args.scene,
        limits: match args.broken {
            true => Enforcement::Off,
            false => Enforcement::On,
        },
        record: args.record.clone(),
        traffic: Duration::from_secs(args.seconds.into()),
    };
    let env = Env {
        net: Net::Tcp,
        store: Store::from(Arc::new(MemoryStore::new(unix_micros()))),
        seed: seed(),
        reset: false,
    };
    let out = &mut std::io::stdout();
    Ok(match runtime()?.block_on(demo::run(&options, env, out))? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs the sidecar on this thread and on as many more as the settings say. It follows `file`, if there is one: the
/// `Notify` asks for a look at it, and the `LogLevel` changes the level of the log. `reset`: `POST /ojs/v1/admin/reset`
/// clears the sidecar, too.
async fn serve(
    settings: Settings,
    file: Option<(config::ConfigFile, Arc<Notify>, LogLevel)>,
    reset: bool,
    stop: Stop,
) -> anyhow::Result<()> {
    let upstream = settings.upstream.url.as_ref().map(BaseUrl::to_string);
    let scheme = settings.server.tls.as_ref().map_or("http", |_| "https");
    let namespace = settings.store.namespace.clone();
    let store = settings.store.url.kind();
    let entries = settings.entries();
    let seed = seed();
    if matches!(settings.store.url, StoreUrl::Memory | StoreUrl::Sqlite(_)) {
        tokio::spawn(watch_clock());
    }
    let opened = tokio::select! {
        store = open_store(&settings.store, seed, unix_micros()) => store?,
        () = stop.heard() => {
            tracing::info!("stopped before the store answered");
            return Ok(());
        }
    };
    let env = Env {
        net: Net::Tcp,
        reset,
        store: opened,
        seed,
    };
    let egress: Vec<_> = settings.egress.iter().map(|of| of.name.clone()).collect();
    let mut running = tokio::select! {
        running = Running::start(settings, env) => running?,
        () = stop.heard() => {
            tracing::info!("stopped before the ports were free");
            return Ok(());
        }
    };
    if let Some((file, ask, level)) = file {
        running = running.following(file, ask, level);
    }
    let admin = running.admin_addr()?;
    let threads = serve_threads(running.threads()?)?;
    let (policies, queues, tenants) = (entries.policies, entries.queues, entries.tenants);
    match running.addr()? {
        Some(data) => {
            tracing::info!(%data, %admin, upstream, store, namespace, policies, queues, tenants, "listening: point SDKs at {scheme}://{data}");
        }
        None => tracing::info!(%admin, store, namespace, "no backend: only calls are limited"),
    }
    for (egress, listen) in egress.iter().zip(running.egress_addrs()?) {
        tracing::info!(%egress, %listen, "calls go out: http://{listen} is the base URL for the SDK of the service, or the HTTP proxy for its hosts");
    }
    life::ready();
    let life = tokio::spawn(life::show());
    let served = running.serve(stop).await;
    life.abort();
    for thread in threads {
        // A thread that panicked has logged it; the others are joined all the same.
        drop(thread.join());
    }
    tracing::info!("stopped");
    served
}

/// Serves the shares of the threads beyond this one.
fn serve_threads(shares: Vec<Thread>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let spawned = shares.into_iter().enumerate().map(|(nth, share)| {
        let name = format!("data-{}", nth + 2);
        let run = move || {
            let runtime = match runtime() {
                Ok(runtime) => runtime,
                Err(error) => {
                    tracing::error!(id = %"thread_cannot_serve", error = %format!("{error:#}"), "a thread cannot serve; the others go on");
                    return;
                }
            };
            if let Err(error) = runtime.block_on(share.serve()) {
                tracing::error!(id = %"thread_cannot_listen", %error, "a thread cannot listen; the others go on");
            }
            // A look-up of the backend's name that gets no answer must not keep the process.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name(name).spawn(run)
    });
    spawned.collect()
}

/// The config file to follow. A pipe is not followed, because its text comes only once.
fn followed(path: &Path, overrides: CommandLine) -> Option<config::ConfigFile> {
    if !path.is_file() && !path.is_dir() {
        tracing::info!("the config is neither a file nor a folder: it is not followed");
        return None;
    }
    Some(config::ConfigFile {
        path: path.to_owned(),
        overrides,
    })
}

/// The signals that are heeded, watched since before anything was read. Until then SIGTERM is lost where this is the
/// first process of a container, and SIGHUP ends any other.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Waits for any of them: for what runs beside a terminal and has nothing to read anew.
    async fn any(&mut self) {
        tokio::select! {
            _ = self.hangup.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Makes a runtime and watches the signals, before anything is read.
fn watched_runtime() -> anyhow::Result<(Runtime, Signals)> {
    let runtime = runtime()?;
    let inside = runtime.enter();
    let signals = Signals {
        hangup: signal(SignalKind::hangup()).context("SIGHUP cannot be handled")?,
        terminate: signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?,
        interrupt: signal(SignalKind::interrupt()).context("SIGINT cannot be handled")?,
    };
    drop(inside);
    Ok((runtime, signals))
}

/// The settings; `None`: a signal came first. A pipe that nobody writes to must not keep the process.
///
/// # Errors
/// As [`Settings::load_with`].
fn load(
    runtime: &Runtime,
    signals: &mut Signals,
    path: Option<&Path>,
    overrides: &CommandLine,
) -> anyhow::Result<Option<Settings>> {
    let (path, overrides) = (path.map(Path::to_owned), overrides.clone());
    let read = move || Settings::load_with(path.as_deref(), &overrides);
    runtime.block_on(async {
        tokio::select! {
            settings = tokio::task::spawn_blocking(read) => Ok(Some(settings??)),
            _ = signals.terminate.recv() => Ok(None),
            _ = signals.interrupt.recv() => Ok(None),
        }
    })
}

/// Heeds signals: the first SIGTERM or SIGINT drains, the second ends at once. A SIGHUP notifies the returned handle;
/// if no file is followed the log says that it changes nothing.
fn heed(signals: Signals, stop: Stop, file: Option<&config::ConfigFile>) -> Arc<Notify> {
    let Signals {
        mut hangup,
        mut terminate,
        mut interrupt,
    } = signals;
    tokio::spawn(async move {
        for (token, word) in [
            (&stop.drain, "draining; a second signal ends at once"),
            (&stop.now, "ending at once"),
        ] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("{word}");
            life::stopping();
            token.cancel();
        }
    });
    let is_followed = file.is_some();
    let ask = Arc::new(Notify::new());
    let asked = Arc::clone(&ask);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            if !is_followed {
                tracing::info!("SIGHUP changes nothing: there is no config file (--config)");
            }
            asked.notify_one();
        }
    });
    ask
}

/// Makes a runtime with one thread for blocking work (names, files), which starts now and stays. If no other thread
/// can start later, such work waits for it; without it tokio would panic.
fn runtime() -> anyhow::Result<Runtime> {
    let possible = std::thread::Builder::new().spawn(|| ());
    let possible = possible.context("there can be no thread (a limit of processes?)")?;
    drop(possible.join());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(A_YEAR)
        .build()?;
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Logs when this host's clock is set. A store on this host goes by the clock as it was at the start.
async fn watch_clock() {
    let (begun, since) = (unix_micros(), Instant::now());
    let mut said = 0;
    loop {
        tokio::time::sleep(CLOCK_LOOK).await;
        let ours = u128::from(begun) + since.elapsed().as_micros();
        let moved = i128::from(unix_micros()) - ours.cast_signed();
        if moved.abs_diff(said) > 1_000_000 {
            said = moved;
            let seconds = moved / 1_000_000;
            tracing::warn!(
                id = %"clock_set",
                seconds,
                "this host's clock was set since the start: calendar windows, window_resets_at and expires_at go by \
                 the clock as it was, until a restart"
            );
        }
    }
}

/// Starts the log, and returns the handle that changes its level.
///
/// # Errors
/// The thread that writes it cannot be started.
fn start_log(
    settings: &config::ServerSettings,
    traces: Option<&Traces>,
) -> anyhow::Result<LogLevel> {
    let lost = |lines| {
        tracing::warn!(
            id = %"log_lines_lost",
            lines,
            "lines of the log were lost: whoever reads it was too slow, or the disk was full"
        )
    };
    let lines = Lines::start(std::io::stderr(), lost);
    let lines = lines.context("there can be no thread to write the log (a limit of processes?)")?;
    let (log, level) = log(settings, LINES.get_or_init(|| lines).clone(), traces);
    log.init();
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => {
                tracing::error!(id = %"panic", thread = thread.name(), %backtrace, "{panic}");
            }
            _ => tracing::error!(id = %"panic", thread = thread.name(), "{panic}"),
        }
        flush(PANIC_LINES);
    }));
    Ok(level)
}

/// Builds the log and the handle for its level. An event below the level costs one look at a number.
fn log(
    settings: &config::ServerSettings,
    lines: Lines,
    traces: Option<&Traces>,
) -> (Box<dyn Subscriber + Send + Sync>, LogLevel) {
    let (filter, level) = reload::Layer::new(LevelFilter::from_level(settings.log_level));
    // What a library says of each frame helps nobody who asks what the sidecar does. The level is not that of spans that
    // are sent.
    let is_ours = filter_fn(|of| {
        let is_said = of.target().starts_with("ojs_") || *of.level() <= Level::WARN;
        is_said && of.target() != traces::TARGET
    });
    let is_ours = is_ours.with_max_level_hint(LevelFilter::TRACE);
    let lines = form(settings, lines).with_filter(filter.and(is_ours));
    let log = registry().with(lines);
    let log: Box<dyn Subscriber + Send + Sync> = match traces {
        None => Box::new(log),
        Some(traces) => Box::new(log.with(traces.layer())),
    };
    (log, level)
}

/// How lines of the log look.
fn form(settings: &config::ServerSettings, lines: Lines) -> Box<dyn Layer<Registry> + Send + Sync> {
    let lines = fmt::layer()
        .with_writer(lines)
        // There is nowhere to report that the log cannot be written; trying would panic.
        .log_internal_errors(false);
    match settings.log {
        LogFormat::Human => lines
            .with_ansi(colours_of(&std::io::stderr()) == Colours::Terminal)
            .with_target(false)
            .boxed(),
        LogFormat::Json => {
            let flat = lines.json().flatten_event(true);
            flat.with_span_list(false).boxed()
        }
    }
}

/// Whether what is written there may have colours (no-color.org).
fn colours_of(to: &impl IsTerminal) -> Colours {
    match to.is_terminal() && variable("NO_COLOR").is_none() {
        true => Colours::Terminal,
        false => Colours::None,
    }
}

/// Logs the warnings about the config.
fn warn(settings: &Settings) {
    let warnings = &settings.warnings;
    if warnings.warnings() > 0 {
        tracing::warn!(id = %"config_warnings", "the config has warnings\n{warnings}");
    }
}

/// Prints to stderr. Nobody may be listening, which is no error.
fn tell(text: &str) {
    let _said = writeln!(std::io::stderr(), "{text}");
}

/// The wall clock, read once: from then on the store's clock runs by itself and never steps back.
#[expect(clippy::disallowed_methods, reason = "this is the edge")]
fn unix_micros() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

fn seed() -> u64 {
    rand::random()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event below the level never reaches the subscriber: checking the hint is its whole cost.
    #[test]
    fn the_log_s_level_is_a_hint_that_changes() {
        for form in [LogFormat::Human, LogFormat::Json] {
            let settings = config::ServerSettings {
                log: form,
                ..config::ServerSettings::default()
            };
            let lines = Lines::start(std::io::sink(), drop).unwrap();
            let (log, level) = log(&settings, lines, None);
            assert_eq!(log.max_level_hint(), Some(LevelFilter::INFO));
            for next in [LevelFilter::DEBUG, LevelFilter::ERROR] {
                level.reload(next).unwrap();
                assert_eq!(log.max_level_hint(), Some(next));
            }
        }
    }
}
