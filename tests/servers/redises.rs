//! Several Redis of the test's own that know each other: a cluster, and a master with a replica and a
//! sentinel.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::redis::{RedisServer, free_port};

/// How long a server may be silent before others take it for gone, where that is what a test is about: where it is
/// not, it must be much more, for a machine that is busy keeps all of them silent.
pub const SILENCE: Duration = Duration::from_millis(1500);

/// The same of a master that a sentinel watches. A sentinel that got no turn for two seconds does nothing for 30 s (its
/// TILT), and after that it takes no replica that was cut off for longer than ten times this and the outage.
pub const WATCHED: Duration = Duration::from_secs(4);

/// What a server on this port answers.
pub fn cli(port: u16, args: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    let done = command.args(args).output().expect("redis-cli is there");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// Longer than a sentinel's TILT and two tries of it.
const PATIENCE: Duration = Duration::from_secs(90);

fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A master, and who takes its place.
pub struct Pair {
    pub master: RedisServer,
    pub replica: RedisServer,
}

impl Pair {
    fn field(server: &RedisServer, name: &str) -> Option<String> {
        let info = cli(server.port, &["INFO", "replication"]);
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    }

    /// Waits until the replica has all that was written.
    fn follows(&self) {
        until("the replica has caught up", || {
            let link = Pair::field(&self.replica, "master_link_status:");
            let there = Pair::field(&self.replica, "slave_repl_offset:");
            link.as_deref() == Some("up")
                && there == Pair::field(&self.master, "master_repl_offset:")
        });
    }

    /// The replica gets nothing any more: what is written from now on goes with the master.
    fn cut(&self) {
        self.follows();
        // The master has no password, and refuses who brings one.
        cli(self.replica.port, &["CONFIG", "SET", "masterauth", "none"]);
        cli(self.master.port, &["CLIENT", "KILL", "TYPE", "replica"]);
        until("the replica is cut off", || {
            let link = Pair::field(&self.replica, "master_link_status:");
            link.as_deref() == Some("down")
        });
    }

    fn fail_over(&mut self) {
        self.master.kill();
        until("the replica is master", || {
            cli(self.replica.port, &["ROLE"]).starts_with("master")
        });
    }
}

/// Three masters, and a replica of the one that has the namespace `ojs-throttle`.
pub struct RedisCluster {
    pub ours: Pair,
    pub others: Vec<RedisServer>,
}

impl RedisCluster {
    /// `silence`: of a node, before the others take it for gone.
    pub fn start(silence: Duration) -> RedisCluster {
        let silence = silence.as_millis().to_string();
        let silence = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &silence,
        ];
        let mut others: Vec<RedisServer> = (0..3).map(|_| RedisServer::with(&silence)).collect();
        let places: Vec<String> = others.iter().map(place).collect();
        let mut create = vec!["--cluster", "create"];
        create.extend(places.iter().map(String::as_str));
        create.push("--cluster-yes");
        let said = cli(others[0].port, &create);
        assert!(said.contains("All 16384 slots covered"), "{said}");
        let slot = cli(others[0].port, &["CLUSTER", "KEYSLOT", "{ojs-throttle}"]);
        // Each has a third of the slots, in this order.
        let nth = slot.parse::<usize>().unwrap() * 3 / 16_384;
        let any_age = ["--cluster-replica-validity-factor", "0"];
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let ours = Pair {
            master: others.remove(nth),
            replica: RedisServer::with(&[&silence[..], &any_age, &at_once].concat()),
        };
        let (from, port) = (ours.replica.port, ours.master.port.to_string());
        let id = cli(ours.master.port, &["CLUSTER", "MYID"]);
        cli(from, &["CLUSTER", "MEET", "127.0.0.1", &port]);
        until("it is a replica", || {
            cli(from, &["CLUSTER", "REPLICATE", &id]) == "OK"
        });
        ours.follows();
        let told = format!("slave {id}");
        let knows = |server: &RedisServer| cli(server.port, &["CLUSTER", "NODES"]).contains(&told);
        until("all know the replica", || others.iter().all(knows));
        RedisCluster { ours, others }
    }

    pub fn url(&self) -> String {
        let places: Vec<String> = self.others.iter().map(place).collect();
        format!("redis+cluster://{}", places.join(","))
    }

    /// How many keys there are on the node of our namespace, and on others.
    pub fn keys(&self) -> (usize, usize) {
        let count = |server: &RedisServer| cli(server.port, &["DBSIZE"]).parse::<usize>().unwrap();
        (
            count(&self.ours.master),
            self.others.iter().map(count).sum(),
        )
    }

    /// Begins to move a slot of our node to the first of the others, and leaves it half moved.
    pub fn begin_move(&self, slot: &str) {
        let (from, to) = (self.ours.master.port, self.others[0].port);
        let (source, target) = (my_id(from), my_id(to));
        for (port, state, id) in [(to, "IMPORTING", source), (from, "MIGRATING", target)] {
            assert_eq!(cli(port, &["CLUSTER", "SETSLOT", slot, state, &id]), "OK");
        }
    }

    /// Moves every other key of the slot, or all of them.
    pub fn move_keys(&self, slot: &str, part: Part) {
        let (from, to) = (self.ours.master.port, self.others[0].port.to_string());
        let keys = cli(from, &["CLUSTER", "GETKEYSINSLOT", slot, "10000"]);
        let step = match part {
            Part::Half => 2,
            Part::All => 1,
        };
        let keys: Vec<&str> = keys.lines().step_by(step).collect();
        assert!(!keys.is_empty(), "there is something to move");
        let migrate = ["MIGRATE", "127.0.0.1", &to, "", "0", "5000", "KEYS"];
        let said = cli(from, &[&migrate[..], &keys].concat());
        assert_eq!(said, "OK", "none of them is at the target");
    }

    /// The slot is the other node's from now on.
    pub fn end_move(&self, slot: &str) {
        let target = my_id(self.others[0].port);
        for port in [self.others[0].port, self.ours.master.port] {
            assert_eq!(
                cli(port, &["CLUSTER", "SETSLOT", slot, "NODE", &target]),
                "OK"
            );
        }
    }

    /// Moves the first slot of the first of the others back to our node, with the tool that people use. Gives what it
    /// said where it failed.
    pub fn reshard(&self) -> Result<(), String> {
        let (from, to) = (self.others[0].port, self.ours.master.port);
        let (source, target) = (my_id(from), my_id(to));
        // What was said of the slot before has gone around.
        let knows = |server: &RedisServer| {
            cli(server.port, &["CLUSTER", "NODES"])
                .lines()
                .any(|line| line.starts_with(&source) && line.split(' ').any(|word| word == "0"))
        };
        let all = || self.others.iter().chain([&self.ours.master]).all(knows);
        until("all know whose the slot is", all);
        let place = place(&self.ours.master);
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "reshard", &place, "--cluster-from", &source]);
        command.args([
            "--cluster-to",
            &target,
            "--cluster-slots",
            "1",
            "--cluster-yes",
        ]);
        let done = command.output().expect("redis-cli is there");
        match done.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&done.stdout).into_owned()),
        }
    }

    /// What is written from now on is lost with the node that has our keys.
    pub fn cut(&self) {
        self.ours.cut();
    }

    /// Kills the node that has our keys, and waits until its replica has taken its place.
    pub fn fail_over(&mut self) {
        self.ours.fail_over();
        let knows = |server: &RedisServer| {
            cli(server.port, &["CLUSTER", "INFO"]).contains("cluster_state:ok")
        };
        until("the cluster is whole", || {
            self.others.iter().chain([&self.ours.replica]).all(knows)
        });
    }
}

/// How many of the keys of a slot are moved.
pub enum Part {
    Half,
    All,
}

fn my_id(port: u16) -> String {
    cli(port, &["CLUSTER", "MYID"])
}

fn place(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port)
}

/// A sentinel, and its port.
fn sentinel(dir: &Path, master: &str, silence: Duration, password: &str) -> (u16, Child) {
    let (port, file) = (free_port(), dir.join("sentinel.conf"));
    let silence = silence.as_millis();
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {master} 1\n\
         sentinel down-after-milliseconds main {silence}\n\
         sentinel failover-timeout main 5000\n\
         requirepass \"{password}\"\n",
        dir.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut sentinel = Command::new("redis-server");
    sentinel.arg(&file).arg("--sentinel");
    sentinel.stdout(Stdio::null()).stderr(Stdio::null());
    (port, sentinel.spawn().unwrap())
}

/// A master and a replica that a sentinel watches.
pub struct WatchedRedis {
    pair: Pair,
    sentinel: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl WatchedRedis {
    /// `silence`: of the master, before the sentinel takes it for gone. `password`: what the sentinel wants from
    /// who asks, if that is not empty.
    pub fn start(silence: Duration, password: &str) -> WatchedRedis {
        let master = RedisServer::start();
        let of = master.port.to_string();
        let follow = ["--replicaof", "127.0.0.1", &of];
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let replica = RedisServer::with(&[&follow[..], &at_once].concat());
        let pair = Pair { master, replica };
        pair.follows();
        let known = pair.replica.port.to_string();
        // Somebody else may take the port in between; then it does not start, and another is tried.
        for _ in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let (port, mut sentinel) = sentinel(dir.path(), &of, silence, password);
            let mut ask = vec!["SENTINEL", "REPLICAS", "main"];
            if !password.is_empty() {
                ask.splice(..0, ["-a", password, "--no-auth-warning"]);
            }
            let mut ended = false;
            until("the sentinel knows the replica", || {
                ended = sentinel.try_wait().unwrap().is_some();
                ended || cli(port, &ask).contains(&known)
            });
            if !ended {
                return WatchedRedis {
                    pair,
                    sentinel,
                    port,
                    _dir: dir,
                };
            }
        }
        panic!("no sentinel starts")
    }

    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/main", self.port)
    }

    /// What is written from now on is lost with the master.
    pub fn cut(&self) {
        self.pair.cut();
    }

    /// Kills the master, and waits until the replica has taken its place.
    pub fn fail_over(&mut self) {
        self.pair.fail_over();
    }
}

impl Drop for WatchedRedis {
    fn drop(&mut self) {
        self.sentinel.kill().ok();
        self.sentinel.wait().ok();
    }
}
