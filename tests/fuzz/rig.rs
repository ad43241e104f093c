//! What is common to all: chance with a seed, changes to bytes, and a program that must stay well.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use crate::process::http::get;
use crate::sidecar::process::Sidecar;

/// Numbers by chance: SplitMix64.
#[derive(Clone)]
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64, nth: u64) -> Chance {
        let mut chance = Chance(seed);
        Chance(chance.next() ^ nth.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of so many; of none it is 0.
    pub fn below(&mut self, count: usize) -> usize {
        let rest = self.next() % (count.max(1) as u64);
        usize::try_from(rest).unwrap()
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// The bytes, changed in one to four places. `words` are what such bytes consist of, `others` what may be mixed in.
    pub fn change(&mut self, bytes: &[u8], words: &[&str], others: &[&str]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(4) {
            self.change_once(&mut bytes, words, others);
        }
        bytes
    }

    fn change_once(&mut self, bytes: &mut Vec<u8>, words: &[&str], others: &[&str]) {
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(24)).min(bytes.len());
        match self.below(11) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.next().to_le_bytes()[0],
            2 => drop(bytes.drain(at..end)),
            3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
            4 => bytes.truncate(at),
            5 => {
                let piece = bytes[at..end].repeat(1 + self.below(40));
                bytes.splice(at..end, piece);
            }
            6 => {
                let other = self.pick(others).as_bytes();
                let (from, to) = (self.below(other.len()), self.below(other.len() + 1));
                bytes.splice(at..end, other[from.min(to)..from.max(to)].to_vec());
            }
            7 => drop(bytes.splice(at..at, [self.next().to_le_bytes()[0]])),
            8 => self.change_a_number(bytes),
            _ => drop(bytes.splice(at..at, self.pick(words).bytes())),
        }
    }

    fn change_a_number(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        let Some(begin) = bytes[at..].iter().position(u8::is_ascii_digit) else {
            return;
        };
        let begin = at + begin;
        let digits = bytes[begin..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let end = begin + digits.count();
        bytes.splice(begin..end, self.pick(&NUMBERS).bytes());
    }
}

/// Where programs are off by one, and over the end.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "00",
    "255",
    "65536",
    "2147483648",
    "4294967295",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551616",
    "1e308",
    "0.1",
    "1e-400",
];

/// For how long a test tries.
fn patience() -> Duration {
    let said = std::env::var("FUZZ_SECONDS")
        .ok()
        .map(|text| text.parse().unwrap());
    let usual = if std::env::var_os("NIGHTLY").is_some() {
        60
    } else {
        5
    };
    Duration::from_secs(said.unwrap_or(usual))
}

fn seed() -> u64 {
    let now = || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    match std::env::var("FUZZ_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) if std::env::var_os("NIGHTLY").is_some() => now(),
        Err(_) => 1,
    }
}

/// Says which case it was, and with which bytes, if it fails.
pub struct Told {
    seed: u64,
    nth: u64,
    bytes: Vec<u8>,
}

impl Told {
    /// What is tried now.
    pub fn trying(&mut self, bytes: &[u8]) {
        self.bytes = bytes.to_vec();
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (seed, nth) = (self.seed, self.nth);
            eprintln!(
                "again: FUZZ_SEED={seed} FUZZ_CASE={nth}\nbytes: {}",
                self.bytes.escape_ascii()
            );
        }
    }
}

/// Tries cases until the time is over; says how many there were.
pub fn try_cases(case: impl FnMut(u64, &mut Chance, &mut Told)) -> u64 {
    try_within(patience(), u64::MAX, case)
}

/// At night so many, however long that takes, and by day until the time is over.
pub fn try_so_many(most: u64, case: impl FnMut(u64, &mut Chance, &mut Told)) -> u64 {
    let night = std::env::var_os("NIGHTLY").is_some() && std::env::var_os("FUZZ_SECONDS").is_none();
    let hour = Duration::from_secs(3_600);
    try_within(if night { hour } else { patience() }, most, case)
}

fn try_within(
    patience: Duration,
    most: u64,
    mut case: impl FnMut(u64, &mut Chance, &mut Told),
) -> u64 {
    let (seed, until) = (seed(), Instant::now() + patience);
    let only: Option<u64> = std::env::var("FUZZ_CASE")
        .ok()
        .map(|text| text.parse().unwrap());
    let mut nth = only.unwrap_or(0);
    let last = only.map_or(most, |only| only + 1);
    // However busy the machine is, as many as are asked for below.
    while nth < last && (only.is_some() || nth <= 50 || Instant::now() < until) {
        let mut told = Told {
            seed,
            nth,
            bytes: Vec::new(),
        };
        case(nth, &mut Chance::new(seed, nth), &mut told);
        nth += 1;
    }
    println!("seed {seed}: {nth} cases");
    assert!(only.is_some() || nth > 50, "only {nth} cases");
    nth - only.unwrap_or(0)
}

/// A program under bytes; it is looked at again and again.
pub struct Watched {
    pub sidecar: Sidecar,
    /// Its memory once it was warm, in KiB.
    warm: Option<usize>,
}

/// What a program may grow by, whatever it is sent, in KiB.
const GROWTH: usize = 96 << 10;

impl Watched {
    pub fn run(config: &str) -> Watched {
        let sidecar = Sidecar::run(config);
        Watched {
            sidecar,
            warm: None,
        }
    }

    /// It runs, nothing in it panicked, it answers, and its memory is bounded.
    pub fn is_well(&mut self, nth: u64) {
        assert!(self.sidecar.runs(), "it ended: {}", self.sidecar.log());
        let panics: Vec<String> = self.sidecar.lines();
        let panic = panics.iter().find(|line| line.contains("id=panic"));
        assert!(panic.is_none(), "{panic:?}");
        assert_eq!(get(self.sidecar.admin, "/livez").status, 200);
        let now = self.sidecar.status("VmRSS");
        let warm = *self.warm.get_or_insert(now);
        assert!(nth < 512 || now < warm + GROWTH, "{warm} KiB became {now}");
        if nth <= 512 {
            self.warm = Some(now);
        }
    }
}

/// Ways out of a sidecar to this vendor: their entries, and where calls go in.
pub fn ways_out(vendor: SocketAddr, each: &[&str]) -> (String, Vec<SocketAddr>) {
    let ports: Vec<SocketAddr> = each.iter().map(|_| crate::servers::port::own()).collect();
    let entries = each.iter().zip(&ports).enumerate().map(|(nth, (more, port))| {
        format!("[[egress]]\nname = \"out{nth}\"\nlisten = \"{port}\"\nupstream = \"http://{vendor}\"\n{more}\n")
    });
    (entries.collect(), ports)
}
