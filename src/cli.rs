//! The command line: what can be said, not what is done.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::env::Shells;
use clap_complete::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate, Shell};
use clap_mangen::Man;

use serde_json::{Value, json};

use crate::config::{BackendAt, BaseUrl, CommandLine, Listen};
use crate::{duration, manual, ship};

/// The variable that names the file of `run`, `check`, `doctor` and `healthcheck`.
pub const CONFIG: &str = "OJS_THROTTLE_CONFIG";
/// The variable that says where the admin port is.
pub const ADMIN: &str = "OJS_THROTTLE_ADMIN";
/// The variable by which the completions of a shell ask the program itself.
pub const COMPLETE: &str = "OJS_THROTTLE_COMPLETE";
/// The variable with the control token.
pub const TOKEN: &str = "OJS_THROTTLE_TOKEN";

/// Rate limits and backpressure for any Open Job Spec backend.
#[derive(Clone, PartialEq, Eq, Debug, Parser)]
#[command(name = "ojs-throttle", version, long_version = VERSION.as_str(), about = ABOUT, after_help = next(), arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `--version` prints: what was built, from what, how.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let profile = match cfg!(debug_assertions) {
        true => "debug, which keeps no commit",
        false => "commit unknown, release",
    };
    // `src/build.rs` finds it out for what is optimised, unless whoever builds says it.
    let build = option_env!("OJS_THROTTLE_BUILD").unwrap_or(profile);
    let version = env!("CARGO_PKG_VERSION");
    let otlp = if cfg!(feature = "otlp") { ", otlp" } else { "" };
    format!("{version}\nbuild: {build}\nfeatures: memory, sqlite, redis, postgres{otlp}")
});

const ABOUT: &str = "Rate limits and backpressure for any Open Job Spec (OJS) backend.

Runs between producers, workers and the backend. Point your SDK at it instead of
the backend; jobs then start no faster, and queues grow no longer, than you allow.";

const NEXT: &str = "Examples:
  ojs-throttle demo                                     see limits at work, in 12 seconds
  ojs-throttle dev                                      with a backend of its own, to develop against
  ojs-throttle run --upstream http://127.0.0.1:9090     forward to a backend; no limits of its own yet
  ojs-throttle check throttle.toml                      is this file right?
  ojs-throttle run --config throttle.toml               the real thing
  ojs-throttle egress --to https://api.example.com --rate 100/1m
                                                        limit the calls of any program; no backend is needed
  ojs-throttle doctor --config throttle.toml            what is wrong with the store or the backend?
  ojs-throttle why --queue billing                      why does nothing start?
  ojs-throttle top                                      all limits, those that bind first
  ojs-throttle pause stripe --reason INC-42 --for 1h    no start for an hour

A first throttle.toml:
  [server]
  upstream = \"http://127.0.0.1:9090\"

  [[policy]]
  name = \"stripe\"
  match = { queue = \"billing\" }
  concurrency = 5
  rate = { limit = 100, period = \"1m\" }

config.example.toml documents every field with its default: `ojs-throttle example config`.
`ojs-throttle example` lists it, and ready-made files for Kubernetes, Prometheus and others.
`ojs-throttle help WORD` says more about a command, or prints a chapter of the manual:";

/// How many chapters stand on a line.
const BESIDE: usize = 9;

/// What to do next, with the chapters of the manual.
fn next() -> String {
    let names: Vec<&str> = manual::CHAPTERS
        .iter()
        .map(|chapter| chapter.name)
        .collect();
    let lines = names.chunks(BESIDE).map(|some| some.join(" "));
    lines.fold(NEXT.to_owned(), |text, line| text + "\n  " + &line)
}

/// What `help` prints: all of it, the help of one command, a chapter of the manual, or both.
///
/// # Errors
/// There is neither a command nor a chapter of that name.
pub fn help(word: Option<&str>) -> Result<String, clap::Error> {
    let mut cli = Cli::command();
    cli.build();
    let Some(word) = word else {
        return Ok(cli.render_long_help().to_string());
    };
    let command = cli.find_subcommand_mut(word);
    let command = command.map(|command| command.render_long_help().to_string());
    let chapter = manual::chapter(word).map(|chapter| chapter.text.to_owned());
    let texts: Vec<String> = command.into_iter().chain(chapter).collect();
    let both = (!texts.is_empty()).then(|| texts.join("\n"));
    both.ok_or_else(|| {
        let said = format!("there is neither a command nor a chapter called {word:?}: `ojs-throttle help` lists both");
        cli.error(ErrorKind::InvalidValue, said)
    })
}

/// What is made from the definitions of the commands.
const MADE: &str = "  man         a page for man
  completions what completes commands in a shell: completions bash, zsh or fish";

/// What `example` prints: a ready-made file, or what there is.
///
/// # Errors
/// There is no file of that name, or nobody said for which shell.
pub fn example(name: Option<&str>, shell: Option<Shell>) -> Result<String, clap::Error> {
    let lines = ship::EXAMPLES.map(|file| format!("  {:<11} {}", file.name, file.about));
    let list = format!("Ready-made files:\n{}\n{MADE}", lines.join("\n"));
    let Some(name) = name else {
        return Ok(list);
    };
    let (mut made, mut cli) = (Vec::new(), Cli::command());
    match (name, shell) {
        ("man", None) => man(cli.clone(), &mut made)?,
        ("completions", Some(shell)) => {
            if let Some(shell) = Shells::builtins().completer(&shell.to_string()) {
                let program = "ojs-throttle";
                shell.write_registration(COMPLETE, program, program, program, &mut made)?;
            }
        }
        ("completions", None) => {
            let said = "say for which shell: `ojs-throttle example completions bash`";
            return Err(cli.error(ErrorKind::MissingRequiredArgument, said));
        }
        _ => {}
    }
    if !made.is_empty() {
        return Ok(String::from_utf8_lossy(&made).into_owned());
    }
    let file = ship::EXAMPLES.into_iter().find(|file| file.name == name);
    file.map(|file| file.text.to_owned()).ok_or_else(|| {
        let said = format!("there is no example called {name:?}\n\n{list}");
        Cli::command().error(ErrorKind::InvalidValue, said)
    })
}

/// Writes one page for `man`, with a section for each command.
fn man(mut cli: clap::Command, made: &mut Vec<u8>) -> io::Result<()> {
    cli.build();
    let page = Man::new(cli.clone());
    page.render_title(made)?;
    page.render_name_section(made)?;
    page.render_synopsis_section(made)?;
    page.render_description_section(made)?;
    page.render_options_section(made)?;
    let inside = |command: &clap::Command| command.get_subcommands().cloned().collect::<Vec<_>>();
    for command in inside(&cli) {
        for command in [vec![command.clone()], inside(&command)].concat() {
            let (name, mut about) = (command.get_bin_name().unwrap_or_default(), Vec::new());
            let section = Man::new(command.clone());
            section.render_synopsis_section(&mut about)?;
            section.render_description_section(&mut about)?;
            section.render_options_section(&mut about)?;
            section.render_extra_section(&mut about)?;
            let about = String::from_utf8_lossy(&about).replace(".SH ", ".SS ");
            made.extend(format!(".SH {name}\n{about}").bytes());
        }
    }
    page.render_extra_section(made)?;
    page.render_version_section(made)
}

/// The commands for a shell that completes a word: also names of chapters and files, and what `keys` there are.
pub fn completing(keys: fn(&str) -> Vec<String>) -> clap::Command {
    let cli = Cli::command();
    let of = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        ArgValueCandidates::new(move || names.iter().map(CompletionCandidate::new).collect())
    };
    let commands = cli.get_subcommands().map(clap::Command::get_name);
    let chapters = manual::CHAPTERS.iter().map(|chapter| chapter.name);
    let words = of(&commands.chain(chapters).collect::<Vec<_>>());
    let files = ship::EXAMPLES.iter().map(|file| file.name);
    let files = of(&files.chain(["man", "completions"]).collect::<Vec<_>>());
    let begins = move |begun: &OsStr| {
        let found = keys(&begun.to_string_lossy()).into_iter();
        found.map(CompletionCandidate::new).collect()
    };
    cli.mut_subcommands(move |command| {
        let (words, files) = (words.clone(), files.clone());
        command.mut_args(move |arg| match arg.get_id().as_str() {
            "key" => arg.add(ArgValueCompleter::new(begins)),
            "word" => arg.add(words.clone()),
            "name" => arg.add(files.clone()),
            _ => arg,
        })
    })
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug, Subcommand)]
pub enum Command {
    /// Run the sidecar in front of a backend
    Run(RunArgs),
    /// Limit the calls that programs make to a service; no backend and no config file is needed
    #[command(
        after_help = "With OJS_THROTTLE_TOKEN in the environment of this command, `pause` and `limit` may change it with that token.
Set http:// and the address of --listen as the base URL in the SDK of the service. With one --store, sidecars
on several machines share the limit. Exits as `run` does, and with 2 when no limit is given."
    )]
    Egress(EgressArgs),
    /// Check config files: say what each means, or show everything that is wrong with it
    #[command(
        after_help = "Exits with 0 when every file can be used, and with 78 when one cannot."
    )]
    Check(Check),
    /// Say whether the store and the backend are as they must be, and what to do where they are not
    #[command(
        after_help = "Changes nothing, unless --probe is given. Exits with 0 when nothing failed, with 1 when something did,
and with 78 when the config cannot be used."
    )]
    Doctor(Doctor),
    /// Say why a queue, a key or a job does not start: who has the slots, and when the next start can be
    #[command(after_help = TOLD)]
    Why(Why),
    /// Print the limits each second, those first that refused most in the last minute
    #[command(after_help = TOLD)]
    Top(Top),
    /// Say which jobs have the slots of a key, or of all keys of a policy
    #[command(after_help = TOLD)]
    Slots(OfKey),
    /// Let no job of a key start, or of any key of a policy, until `resume` or for a while
    #[command(after_help = CHANGED)]
    Pause(PauseArgs),
    /// End a pause
    #[command(after_help = CHANGED)]
    Resume(OfKey),
    /// Set limits of a key, or of each key of a policy, in place of those that it has, until `clear` or for a while
    #[command(after_help = CHANGED)]
    Limit(LimitArgs),
    /// Take away what was set by hand for a key, its limits and until when it is shut, or for a policy
    #[command(after_help = CHANGED)]
    Clear(Clear),
    /// Say where jobs wait that have a key of their own, in queues with subqueues
    #[command(after_help = TOLD)]
    Subqueues(SubqueuesArgs),
    /// Run the sidecar with a small OJS backend in the same process, to develop against
    #[command(
        after_help = "Nothing is stored: all jobs are gone when it ends. Exits as `run` does."
    )]
    Dev(Dev),
    /// Show limits at work: real workers, a real backend, a verdict
    #[command(
        after_help = "Everything runs in this process, on free ports of 127.0.0.1, and nothing is kept.
Exits with 0 when every limit was held and no job was lost or doubled, else with 1: also
when there was nothing to judge. With --break that is always so."
    )]
    Demo(Demo),
    /// Print a ready-made file: for Kubernetes, compose, systemd, Prometheus or Grafana
    Example {
        /// Which one; without it, what there is
        name: Option<String>,
        /// For which shell completions are
        shell: Option<Shell>,
    },
    /// Say whether the sidecar of this host is ready, as a container's health check asks
    #[command(after_help = "Exits with 0 when it is, and with 1 when it is not or nobody answers.")]
    Healthcheck(Healthcheck),
    /// Print the JSON Schema of the config file, or the OpenAPI of what the sidecar answers by itself
    Schema {
        /// Of what
        #[arg(value_enum, default_value_t = SchemaOf::Config)]
        of: SchemaOf,
    },
    /// Say more about a command, or print a chapter of the manual
    Help {
        /// A command or a chapter; without it, what there is
        word: Option<String>,
    },
}

/// What there is a schema of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum SchemaOf {
    /// The config file, as JSON Schema 2020-12
    Config,
    /// The sidecar's own routes, as OpenAPI 3.1
    Openapi,
}

impl SchemaOf {
    /// All of it.
    pub fn text(self) -> &'static str {
        match self {
            SchemaOf::Config => ship::SCHEMA,
            SchemaOf::Openapi => ship::OPENAPI,
        }
    }
}

const TOLD: &str = "Only reads: it claims no job and changes nothing. Exits with 0 when there is an answer, and with 1 when the
sidecar refuses. Exits with 2 when the question is not understood, and with 3 when no sidecar answers.";

const CHANGED: &str = "Needs the control token of the sidecar: OJS_THROTTLE_TOKEN, or the control_token of --config. Prints what it did
and the command that undoes it. Exits with 0 when it is done, and with 1 when the sidecar refuses. Exits
with 2 when the command is not understood, and with 3 when no sidecar answers.";

/// `check`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Check {
    /// The TOML files, or folders of files *.toml; - is standard input
    #[arg(value_name = "PATH", required_unless_present = "config")]
    pub paths: Vec<PathBuf>,
    /// One more, said as for `run`; the variable counts where no PATH is given
    #[arg(short, long, value_name = "PATH", env = CONFIG)]
    pub config: Option<PathBuf>,
    /// One JSON object for each file, on a line of its own
    #[arg(long)]
    pub json: bool,
}

/// An address to listen on, as in the file.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map(|Listen(address)| address)
}

/// A duration, which stays as it was written.
fn written_duration(text: &str) -> Result<String, String> {
    let parsed = duration::parse(text);
    parsed
        .map(|_| text.to_owned())
        .map_err(|why| why.to_string())
}

/// `100/1m`, as an override has it.
fn rate(text: &str) -> Result<Value, String> {
    let parts = text.split_once('/');
    // Money has its currency behind it, as `800USD`.
    let is_money = |limit: &str| limit.ends_with(|c: char| c.is_ascii_uppercase());
    let number = |limit: &str| match limit.parse::<u32>() {
        Ok(number) => Some(json!(number)),
        Err(_) => is_money(limit).then(|| json!(limit)),
    };
    let parts = parts.and_then(|(limit, period)| Some((number(limit)?, period)));
    let (limit, period) = parts.ok_or("write NUMBER/PERIOD, such as 100/1m")?;
    // As many write it: 10/s.
    let one = matches!(period, "s" | "m" | "h" | "d" | "ms" | "min" | "sec")
        .then(|| format!("1{period}"));
    let period = one.as_deref().unwrap_or(period);
    duration::parse_period(period).map_err(|why| format!("{period:?} {why}"))?;
    Ok(json!({"limit": limit, "period": period}))
}

/// A member of `meta` with its value.
fn member(text: &str) -> Result<String, &'static str> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err("write NAME=VALUE"),
    }
}

/// `run`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
#[command(
    after_help = "What is given here wins over the file. Without a file, --upstream is required. Between the two stand the
variables OJS_THROTTLE_UPSTREAM, _LISTEN, _ADMIN_LISTEN, _STORE_URL, _LOG and _LOG_LEVEL.
The file is checked as a whole before anything starts.
Exits with 0 after a stop in order, after drain_timeout, and at a second signal. Exits with 1 when it
cannot start or a part of it breaks, and with 78 when the config cannot be used."
)]
pub struct RunArgs {
    /// The TOML file, or a folder of files *.toml
    #[arg(short, long, value_name = "PATH", env = CONFIG)]
    pub config: Option<PathBuf>,
    /// Where SDKs connect [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// The backend, such as http://127.0.0.1:9090; none: there is none, and only calls are limited
    #[arg(long, value_name = "URL")]
    pub upstream: Option<BackendAt>,
    /// Where metrics and health are [default: 127.0.0.1:9091]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub admin_listen: Option<SocketAddr>,
}

impl RunArgs {
    /// What is to be put over the file.
    pub fn overrides(&self) -> CommandLine {
        CommandLine {
            listen: self.listen,
            admin_listen: self.admin_listen,
            upstream: self.upstream.clone(),
            ..CommandLine::of_environment()
        }
    }
}

/// The longest `max_wait`, in microseconds.
const LONGEST_WAIT: u64 = 3_600_000_000;

/// `egress`: each option is a line of the file that it stands for.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
#[command(group = clap::ArgGroup::new("limits").args(["rate", "throttle", "concurrency", "tokens"]).multiple(true).required(true))]
pub struct EgressArgs {
    /// Where the calls go: the base URL of the service
    #[arg(long, value_name = "URL")]
    pub to: BaseUrl,
    /// So many calls in any such time, such as 100/1m; may stand several times
    #[arg(long, value_name = "N/PERIOD", value_parser = rate, allow_hyphen_values = true)]
    pub rate: Vec<Value>,
    /// Calls that are evenly spaced, such as 10/1s
    #[arg(long, value_name = "N/PERIOD", value_parser = rate, allow_hyphen_values = true)]
    pub throttle: Option<Value>,
    /// So many calls at once
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub concurrency: Option<u32>,
    /// So many tokens of models in any such time, such as 200000/1m
    #[arg(long, value_name = "N/PERIOD", value_parser = rate, allow_hyphen_values = true)]
    pub tokens: Option<Value>,
    /// The most tokens that one call counts, which one of unknown size pays [default: all of them]
    #[arg(long, value_name = "N", requires = "tokens")]
    pub max_tokens: Option<u64>,
    /// Which calls share the limits and the tokens, such as shop:{header.X-Shop} [default: all of them]
    #[arg(long, value_name = "TEMPLATE")]
    pub key: Option<String>,
    /// How long a call may wait for its turn [default: 10s; with --tokens of at most an hour until a whole window of them is free]
    #[arg(long, value_name = "DURATION", value_parser = written_duration, allow_hyphen_values = true)]
    pub max_wait: Option<String>,
    /// Where programs connect
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:8082")]
    pub listen: SocketAddr,
    /// Where metrics and health are [default: 127.0.0.1:9091]
    #[arg(long, visible_alias = "admin", value_name = "ADDRESS", value_parser = address)]
    pub admin_listen: Option<SocketAddr>,
    /// The store that several sidecars share, such as redis://127.0.0.1:6379 [default: memory:]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// What callers must show, such as file:/run/token; needed where others reach --listen
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Print the config file that does the same, and do nothing else
    #[arg(long)]
    pub print: bool,
}

impl EgressArgs {
    /// The file. A JSON text is a TOML text, too.
    pub fn file(&self) -> String {
        let quoted = |text: &str| json!(text).to_string();
        let pace = |of: &Value| format!("{{ limit = {}, period = {} }}", of["limit"], of["period"]);
        let paces: Vec<String> = self.rate.iter().map(pace).collect();
        let rate = match paces.as_slice() {
            [] => None,
            [one] => Some(one.clone()),
            _ => Some(format!("[{}]", paces.join(", "))),
        };
        // The key, if none is given: sidecars before one service share its limit.
        let service = self.to.authority().replace(['[', ']'], "");
        let service = match service.starts_with(':') {
            true => format!("to{service}"),
            false => service,
        };
        let admin = self.admin_listen.map(|admin| admin.to_string());
        let (tokens, budget) = (self.tokens.as_ref(), format!("{service}:tokens"));
        let key_of_budget = self.key.as_ref();
        let key_of_budget = key_of_budget.map(|key| quoted(&format!("{budget}:{key}")));
        let cost = |of: &Value| format!("{{ use = \"tokens\", max = {} }}", self.most(of));
        let lines = [
            ("\n[server]\nupstream", Some(quoted("none"))),
            ("admin_listen", admin.as_deref().map(quoted)),
            ("\n[store]\nurl", self.store.as_deref().map(quoted)),
            ("\n[[egress]]\nname", Some(quoted(&service))),
            ("listen", Some(quoted(&self.listen.to_string()))),
            ("upstream", Some(quoted(&self.to.to_string()))),
            ("key", self.key.as_deref().map(quoted)),
            ("rate", rate),
            ("throttle", self.throttle.as_ref().map(pace)),
            ("concurrency", self.concurrency.map(|most| most.to_string())),
            ("max_wait", self.waits().as_deref().map(quoted)),
            ("token", self.token.as_deref().map(quoted)),
            ("\n[[egress.budget]]\nname", tokens.map(|_| quoted(&budget))),
            ("key", key_of_budget.filter(|_| tokens.is_some())),
            ("cost", tokens.map(cost)),
            ("rate", tokens.map(pace)),
        ];
        let lines = lines.into_iter();
        let lines = lines.filter_map(|(name, value)| Some(format!("{name} = {}\n", value?)));
        lines.collect::<String>().trim_start().to_owned()
    }

    /// How many tokens one call may count. One whose size nobody knows counts so many until its answer tells.
    fn most(&self, tokens: &Value) -> u64 {
        self.max_tokens.or(tokens["limit"].as_u64()).unwrap_or(1)
    }

    /// How long a call waits: as long as all tokens need to come free, if nobody says.
    fn waits(&self) -> Option<String> {
        let period = self.tokens.as_ref().and_then(|of| of["period"].as_str());
        let period = period.and_then(|text| duration::parse_period(text).ok());
        let period = period.filter(|micros| *micros <= LONGEST_WAIT);
        // A window is not counted to the moment.
        let seconds = period.map(|micros| (micros + micros / 16).div_ceil(1_000_000));
        let seconds = seconds.map(|seconds| format!("{}s", seconds.min(LONGEST_WAIT / 1_000_000)));
        self.max_wait.clone().or(seconds)
    }

    /// What is to be put over the file: of the environment what no option says, and nothing of a backend.
    pub fn overrides(&self) -> CommandLine {
        let mut all = CommandLine::of_environment();
        all.variables.retain(|(name, _)| match *name {
            "OJS_THROTTLE_ADMIN_LISTEN" => self.admin_listen.is_none(),
            "OJS_THROTTLE_STORE_URL" => self.store.is_none(),
            name => name.starts_with("OJS_THROTTLE_LOG"),
        });
        all
    }
}

/// `doctor`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Doctor {
    /// The TOML file, or a folder of files *.toml
    #[arg(short, long, value_name = "PATH", env = CONFIG)]
    pub config: Option<PathBuf>,
    /// The backend, in place of the file's
    #[arg(long, value_name = "URL")]
    pub upstream: Option<BackendAt>,
    /// Find out what the backend does, with a few jobs in a queue of its own that is cleaned up
    /// afterwards (2 to 50 s), and whether the store may be written to
    #[arg(long)]
    pub probe: bool,
    /// Say only what becomes of calls to this host: which way out takes them, their key and limits, and whether its
    /// addresses are open to them. With --probe a connection is made too
    #[arg(long, value_name = "HOST[:PORT]")]
    pub host: Option<String>,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

impl Doctor {
    /// What is to be put over the file.
    pub fn overrides(&self) -> CommandLine {
        CommandLine {
            upstream: self.upstream.clone(),
            ..CommandLine::of_environment()
        }
    }
}

/// Where the admin port of a running sidecar is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Args)]
pub struct AdminArgs {
    /// The admin port [default: that of --config, else OJS_THROTTLE_ADMIN, else http://127.0.0.1:9091]
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// The TOML file of the sidecar: its admin_listen and its control_token are used
    #[arg(short, long, value_name = "PATH")]
    pub config: Option<PathBuf>,
}

/// `healthcheck`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Healthcheck {
    /// The admin port [default: that of --config if it is there, else OJS_THROTTLE_ADMIN, else OJS_THROTTLE_ADMIN_LISTEN]
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// The TOML file of the sidecar, or its folder
    #[arg(short, long, value_name = "PATH", env = CONFIG)]
    pub config: Option<PathBuf>,
}

/// `why`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
#[command(group = clap::ArgGroup::new("question").args(["queue", "key", "policy", "job", "kind"]).multiple(true).required(true))]
pub struct Why {
    /// Why does this queue start nothing?
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// Why does this rate limit key start nothing?
    #[arg(long, value_name = "KEY", conflicts_with_all = ["queue", "job", "kind"])]
    pub key: Option<String>,
    /// What is set by hand for all keys of this policy?
    #[arg(long, value_name = "NAME", conflicts_with_all = ["queue", "key", "job", "kind"])]
    pub policy: Option<String>,
    /// Why does this job not start?
    #[arg(long, value_name = "ID", conflicts_with_all = ["queue", "kind"])]
    pub job: Option<String>,
    /// What would limit a job of this type? Beside it --queue and --meta may stand
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// A member of such a job's meta
    #[arg(long, value_name = "NAME=VALUE", requires = "kind", value_parser = member)]
    pub meta: Vec<String>,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the sidecar is
    #[command(flatten)]
    pub admin: AdminArgs,
}

impl Why {
    /// The names and values that are asked about.
    pub fn question(&self) -> impl Iterator<Item = (String, String)> {
        let policy = self.policy.as_ref().map(|name| format!("_policy:{name}"));
        let named = [
            ("queue", self.queue.clone()),
            ("key", policy.or_else(|| self.key.clone())),
            ("job", self.job.clone()),
            ("type", self.kind.clone()),
        ];
        let named = named.into_iter();
        let named = named.filter_map(|(name, value)| Some((name.to_owned(), value?)));
        named.chain(self.meta.iter().map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (format!("meta.{name}"), value.to_owned())
        }))
    }
}

/// What a command is about.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct OfKey {
    /// The rate limit key; _queue:NAME stands for a queue as a whole, and for bounds _tenant:ID for a tenant
    #[arg(required_unless_present = "policy")]
    pub key: Option<String>,
    /// In place of a key: all keys of this policy, also those that come later
    #[arg(long, value_name = "NAME", conflicts_with = "key")]
    pub policy: Option<String>,
    /// The sidecar's answer as it came, instead of text
    #[arg(long)]
    pub json: bool,
    /// Where the sidecar is
    #[command(flatten)]
    pub admin: AdminArgs,
}

impl OfKey {
    /// As the admin port calls it.
    pub fn name(&self) -> String {
        let policy = self.policy.as_ref().map(|name| format!("_policy:{name}"));
        policy.or_else(|| self.key.clone()).unwrap_or_default()
    }
}

/// What is noted beside limits that are set.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Note {
    /// Why; `why` shows it
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// How long, such as 1h
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub lasts: Option<u64>,
    /// Who
    #[arg(long, value_name = "NAME", env = "USER", hide_env_values = true)]
    pub by: Option<String>,
}

/// `pause`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct PauseArgs {
    /// The key
    #[command(flatten)]
    pub of: OfKey,
    /// Why, and for how long
    #[command(flatten)]
    pub note: Note,
}

/// `limit`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
#[command(group = clap::ArgGroup::new("limits").args(["concurrency", "rate", "throttle", "set", "next_start", "used", "bounds"]).multiple(true).required(true))]
pub struct LimitArgs {
    /// The key
    #[command(flatten)]
    pub of: OfKey,
    /// So many jobs at once
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub concurrency: Option<u32>,
    /// So many starts in any such time, such as 100/1m; may stand several times
    #[arg(long, value_name = "N/PERIOD", value_parser = rate, allow_hyphen_values = true)]
    pub rate: Vec<Value>,
    /// Starts that are evenly spaced, such as 10/1s
    #[arg(long, value_name = "N/PERIOD", value_parser = rate, allow_hyphen_values = true)]
    pub throttle: Option<Value>,
    /// Numbers and notes as JSON, as PUT /ojs/v1/rate-limits/KEY takes them
    #[arg(long = "override", value_name = "JSON", value_parser = |text: &str| text.parse::<Value>(), conflicts_with_all = ["concurrency", "rate", "throttle", "next_start", "reason"])]
    pub set: Option<Value>,
    /// No start before this time, or for so long
    #[arg(long, value_name = "TIME|DURATION", allow_hyphen_values = true, conflicts_with_all = ["policy", "concurrency", "rate", "throttle", "reason", "lasts"])]
    pub next_start: Option<String>,
    /// A budget has used so much, in place of what was counted, such as 50000 or 431.20USD
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true, conflicts_with_all = ["policy", "concurrency", "rate", "throttle", "set", "next_start", "reason", "lasts"])]
    pub used: Option<String>,
    /// Bounds of _queue:NAME as JSON, as `backpressure` has them; of _tenant:ID, how many of its jobs may wait
    #[arg(long, value_name = "JSON", value_parser = |text: &str| text.parse::<Value>(), conflicts_with_all = ["policy", "concurrency", "rate", "throttle", "set", "next_start", "used", "reason", "lasts"])]
    pub bounds: Option<Value>,
    /// Beside the numbers
    #[command(flatten)]
    pub note: Note,
}

/// `clear`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Clear {
    /// The key
    #[command(flatten)]
    pub of: OfKey,
    /// Forget what windows and spacing have counted instead, and open the key
    #[arg(long, conflicts_with = "policy")]
    pub usage: bool,
    /// Take away the numbers that are set, and a pause, and nothing else
    #[arg(long, conflicts_with = "usage")]
    pub r#override: bool,
    /// Open a key that is shut, and leave its numbers as they are set
    #[arg(long, conflicts_with_all = ["policy", "usage", "override"])]
    pub next_start: bool,
    /// Take away the bounds of _queue:NAME or _tenant:ID, and leave its limits as they are set
    #[arg(long, conflicts_with_all = ["policy", "usage", "override", "next_start"])]
    pub bounds: bool,
}

/// `subqueues`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct SubqueuesArgs {
    /// What to do; without it, they are listed
    #[command(subcommand)]
    pub what: Option<OfSubqueues>,
    /// Ask the backend about each subqueue, and list all that have jobs
    #[arg(long)]
    pub all: bool,
    /// The sidecar's answer as it came, instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// The admin port [default: that of --config, else OJS_THROTTLE_ADMIN, else http://127.0.0.1:9091]
    #[arg(long, value_name = "URL", global = true)]
    pub admin: Option<String>,
    /// The TOML file of the sidecar: its admin_listen and its control_token are used
    #[arg(short, long, value_name = "PATH", global = true)]
    pub config: Option<PathBuf>,
}

impl SubqueuesArgs {
    /// Where the sidecar is.
    pub fn admin(&self) -> AdminArgs {
        AdminArgs {
            admin: self.admin.clone(),
            config: self.config.clone(),
        }
    }
}

/// What is done to the subqueues of a queue.
#[derive(Clone, PartialEq, Eq, Debug, Subcommand)]
pub enum OfSubqueues {
    /// Let no sidecar read the subqueues of a queue any more, once they are empty and no file names them
    #[command(
        after_help = "Needs the control token of the sidecar: OJS_THROTTLE_TOKEN, or the control_token of --config."
    )]
    Forget {
        /// The queue
        queue: String,
        /// Also where jobs wait in them: these stay there until a sidecar that starts finds them
        #[arg(long)]
        force: bool,
    },
}

/// What `top` shows first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Sort {
    /// Jobs that were refused in the last minute
    Refused,
    /// Jobs that wait
    Waiting,
    /// Starts in the last minute
    Starts,
    /// Names
    Name,
}

/// `top`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Top {
    /// Of the 50 limits that bind most, the most first
    #[arg(long, value_enum, default_value_t = Sort::Refused)]
    pub sort: Sort,
    /// Only limits and queues whose name has this text, and the limits of such queues
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
    /// Print it once
    #[arg(long)]
    pub once: bool,
    /// The state as one line of JSON
    #[arg(long)]
    pub json: bool,
    /// The longest line; 0: none is cut [default: the terminal's width, else 0]
    #[arg(
        long,
        env = "COLUMNS",
        hide_env_values = true,
        allow_negative_numbers = true
    )]
    pub columns: Option<u32>,
    /// Where the sidecar is
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `dev`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Dev {
    /// Where SDKs connect
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where the backend listens, for calls that go around the sidecar
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1:9090")]
    pub backend_listen: SocketAddr,
    /// Where metrics and health are [default: 127.0.0.1:9091]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub admin_listen: Option<SocketAddr>,
    /// A TOML file with policies; its `listen` and `upstream`, and a store over the network, are not used
    #[arg(short, long, value_name = "PATH")]
    pub config: Option<PathBuf>,
}

/// What `demo` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Scene {
    /// Limits at work
    Limits,
    /// A queue that stays within its bound
    Backpressure,
    /// Tenants that share a vendor's tokens by weight
    Cost,
    /// A tenant with thousands of jobs, and others behind it
    Depth,
    /// Calls inside jobs to a vendor that bans whoever makes too many
    Egress,
    /// Programs without jobs that call a model, within the vendor's tokens
    Tokens,
}

/// `demo`.
#[derive(Clone, PartialEq, Eq, Debug, Args)]
pub struct Demo {
    /// What to show
    #[arg(value_enum, default_value_t = Scene::Limits)]
    pub scene: Scene,
    /// Run with the limits off, to see them broken
    #[arg(long = "break")]
    pub broken: bool,
    /// Write the same as a plot to this file (of limits only)
    #[arg(long, value_name = "FILE.svg")]
    pub record: Option<PathBuf>,
    /// How long producers and workers go on
    #[arg(long, value_name = "N", default_value_t = 12, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=300))]
    pub seconds: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_given_is_what_is_meant() {
        let run = |line: &str| match Cli::parse_from(line.split(' ')).command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        };
        let both = run("ojs-throttle run --upstream https://ojs/base --listen 0.0.0.0:1");
        assert_eq!(both.overrides().upstream, "https://ojs/base".parse().ok());
        assert_eq!(both.overrides().listen, "0.0.0.0:1".parse().ok());
        let cli = Cli::parse_from(["ojs-throttle", "demo", "--break"]);
        let demo = Demo {
            scene: Scene::Limits,
            broken: true,
            record: None,
            seconds: 12,
        };
        assert_eq!(cli.command, Command::Demo(demo));
        assert!(Cli::try_parse_from(["ojs-throttle", "run", "--upstream", "ojs:80"]).is_err());
        let named = run("ojs-throttle run --listen localhost:8080");
        assert_eq!(named.listen, "127.0.0.1:8080".parse().ok());
        let bare = Cli::try_parse_from(["ojs-throttle", "run", "--listen", "localhost"]);
        let told = bare.unwrap_err().to_string();
        assert!(told.contains("such as \"127.0.0.1:8080\""), "{told}");
        let dev = Cli::parse_from(["ojs-throttle", "dev", "--admin-listen", "127.0.0.1:1"]);
        let Command::Dev(dev) = dev.command else {
            panic!("not dev")
        };
        assert_eq!(dev.admin_listen, "127.0.0.1:1".parse().ok());
        assert!(Cli::try_parse_from(["ojs-throttle", "demo", "--seconds", "0"]).is_err());
    }

    #[test]
    fn help_teaches() {
        let help = Cli::command().render_help().to_string();
        for word in [
            "run",
            "check",
            "dev",
            "demo",
            "upstream",
            "config.example.toml",
        ] {
            assert!(help.contains(word), "{word}");
        }
        let Command::Demo(demo) = Cli::parse_from(["ojs-throttle", "demo"]).command else {
            panic!("no demo");
        };
        assert!(help.contains(&format!("in {} seconds", demo.seconds)));
    }
}
