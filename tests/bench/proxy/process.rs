//! The proxies as processes: started, watched through `/proc`, ended by their own ids.

use std::ffi::OsStr;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The core of the proxies; the bench itself keeps to the other one.
const CORE: &str = "0";
const OWN_CORE: &str = "1";

/// A proxy that runs; ended when dropped.
pub struct Process {
    child: Child,
    /// Where it listens.
    pub doors: Doors,
}

/// Where calls to a service are made.
#[derive(Clone, Copy)]
pub enum Door {
    /// Not a call: what workers and producers ask.
    Jobs,
    /// Nothing limits them.
    Free,
    /// They are evenly spaced.
    Paced,
    /// They are evenly spaced, and pay tokens.
    Budget,
}

/// Where a proxy has its doors.
#[derive(Clone, Copy)]
pub struct Doors {
    pub jobs: SocketAddr,
    free: SocketAddr,
    paced: SocketAddr,
    budget: SocketAddr,
}

impl Doors {
    /// The address of this one.
    pub fn at(&self, door: Door) -> SocketAddr {
        match door {
            Door::Jobs => self.jobs,
            Door::Free => self.free,
            Door::Paced => self.paced,
            Door::Budget => self.budget,
        }
    }
}

impl Process {
    /// nginx as a plain reverse proxy with one worker, its files in `dir`.
    pub fn nginx(dir: &Path, backend: SocketAddr) -> Result<Process> {
        let addr = free()?;
        let file = dir.join("nginx.conf");
        let dir = dir.display();
        let text = format!(
            "daemon off; master_process off; pid {dir}/nginx.pid; error_log {dir}/error.log;
             events {{ worker_connections 1024; }}
             http {{
               access_log off; keepalive_requests 1000000000; keepalive_timeout 120s;
               client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
               fastcgi_temp_path {dir}/fastcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
               upstream backend {{
                 server {backend}; keepalive 256; keepalive_requests 1000000000;
               }}
               server {{
                 listen {addr};
                 location / {{
                   proxy_pass http://backend; proxy_http_version 1.1;
                   proxy_set_header Connection \"\"; proxy_set_header Host $http_host;
                 }}
               }}
             }}"
        );
        fs::write(&file, text)?;
        let mut command = pinned("nginx");
        command.arg("-c").arg(&file);
        let doors = Doors {
            jobs: addr,
            free: addr,
            paced: addr,
            budget: addr,
        };
        Process::start(command, doors).context("nginx does not start; is nginx-light installed?")
    }

    /// The sidecar, with limits so generous that everything starts.
    pub fn sidecar(binary: &Path, file: &Path, backend: SocketAddr) -> Result<Process> {
        let admin = free()?;
        let doors = Doors {
            jobs: free()?,
            free: free()?,
            paced: free()?,
            budget: free()?,
        };
        let paced = "throttle = { limit = 1000000, period = \"1s\", burst = 1000000 }";
        let entry = |name: &str, listen: SocketAddr| {
            format!(
                r#"
            [[egress]]
            name = "{name}"
            listen = "{listen}"
            upstream = "http://{backend}"
            "#
            )
        };
        let entries = [
            entry("free", doors.free),
            entry("paced", doors.paced) + paced,
            entry("budget", doors.budget) + paced,
        ]
        .concat();
        let text = format!(
            r#"
            [server]
            listen = "{}"
            admin_listen = "{admin}"
            upstream = "http://{backend}"
            log_level = "warn"
            [upstream]
            claims_count = "no"
            liveness = "job"
            [hold]
            max = 4096
            [[queue]]
            name = "bounded"
            max_depth = 10000000

            [[policy]]
            name = "tenant"
            match = {{ queue = "limited" }}
            key = "tenant:{{meta.tenant}}"
            concurrency = 1000000
            rate = {{ limit = 1000000000, period = "1m" }}
            {paced}
            {entries}

            [[egress.budget]]
            name = "tokens"
            cost = {{ use = "tokens", max = 1000 }}
            rate = {{ limit = 1000000000, period = "1m" }}
            "#,
            doors.jobs
        );
        fs::write(file, text)?;
        let mut command = pinned(binary.as_os_str());
        command.arg("run").arg("--config").arg(file);
        Process::start(command, doors)
            .with_context(|| format!("{} does not start", binary.display()))
    }

    fn start(mut command: Command, doors: Doors) -> Result<Process> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut process = Process { child, doors };
        for _ in 0..1200 {
            if TcpStream::connect(doors.jobs).is_ok() {
                return Ok(process);
            }
            if let Some(status) = process.child.try_wait()? {
                bail!("it ended: {status}");
            }
            sleep(Duration::from_millis(25));
        }
        bail!("it does not listen on {}", doors.jobs)
    }

    /// The processor time that it has used so far, user and system, in nanoseconds.
    pub fn cpu(&self) -> Result<u64> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text
                .split_whitespace()
                .next()
                .context("no time in schedstat")?;
            sum += first.parse::<u64>()?;
        }
        Ok(sum)
    }

    /// Its resident memory in bytes.
    pub fn memory(&self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|rest| rest.split_whitespace().next());
        Ok(kilobytes.context("no VmRSS")?.parse::<u64>()? * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone after this.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Moves the bench itself away from the core of the proxies. Where that cannot be, the figures are
/// noisier, not wrong.
pub fn pin_bench() {
    let id = std::process::id().to_string();
    drop(taskset(&["-a", "-p", "-c", OWN_CORE, &id]));
}

/// A command that runs on the core of the proxies. `taskset` becomes the command, so that the id of
/// the child is the proxy's.
fn pinned(program: impl AsRef<OsStr>) -> Command {
    // The bench itself is on another core by now, if there is one.
    let own = std::process::id().to_string();
    let moved = fs::read_to_string(format!("/proc/{own}/status"))
        .is_ok_and(|status| status.contains(&format!("Cpus_allowed_list:\t{OWN_CORE}\n")));
    if !moved {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", CORE]).arg(program);
    command
}

fn taskset(arguments: &[&str]) -> std::io::Result<ExitStatus> {
    Command::new("taskset")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
}

/// An address that nobody listens on.
fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
