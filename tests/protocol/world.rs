//! What the model knows of the world at one moment: the store, the backend, the sidecars, the workers' runs, and what
//! may still go wrong. Small, and the same for all that differs only in names.

use smallvec::SmallVec;

use super::books::{Books, Claim, JOBS, KEYS, Number, Row, SIDECARS, Time, Times, Verdict};

/// What may still happen, each so many times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Left {
    /// A sidecar dies.
    pub crashes: u8,
    /// A sidecar stands still, for as long as it may be.
    pub pauses: u8,
    /// A call to the store is lost on its way there, or its answer on the way back; a claim's reply is lost.
    pub lost: u8,
    /// A call to the store is carried out twice.
    pub doubled: u8,
    /// Nobody reaches the store.
    pub outages: u8,
    /// One sidecar does not reach the store.
    pub cuts: u8,
    /// The store goes on without its last writes.
    pub failovers: u8,
    /// The store is emptied.
    pub wipes: u8,
    pub offers: u8,
    pub nacks: u8,
    /// A worker dies.
    pub deaths: u8,
}

impl Left {
    /// What these words say, each once.
    fn of(words: &str) -> Left {
        let mut left = Left::default();
        for word in words.split_whitespace() {
            *match word {
                "crash" => &mut left.crashes,
                "pause" => &mut left.pauses,
                "lost" => &mut left.lost,
                "doubled" => &mut left.doubled,
                "outage" => &mut left.outages,
                "cut" => &mut left.cuts,
                "failover" => &mut left.failovers,
                "wipe" => &mut left.wipes,
                "offer" => &mut left.offers,
                "nack" => &mut left.nacks,
                "death" => &mut left.deaths,
                _ => panic!("there is no {word}"),
            } += 1;
        }
        left
    }
}

/// A job as the backend has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    Waiting,
    /// Claimed, until then at least.
    Active(Time),
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Job {
    pub stage: Stage,
    /// How often it was claimed.
    pub attempt: u8,
    /// The number that the next claim gets here: the store's clock when its reply is read. An own is one above its offer.
    pub number: Number,
}

/// A job that is with a worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    pub claim: Claim,
    /// The sidecar that handed it out.
    pub through: usize,
    /// Its worker is dead.
    pub is_silent: bool,
    /// Its row is not known in the store, by one of the named exceptions.
    pub is_excused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Offer {
    No,
    Untold,
    Told,
}

/// A job that a sidecar holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Held {
    pub claim: Claim,
    /// Past this it is not ours.
    pub deadline: Time,
    /// The store has heard of this claim.
    pub is_named: bool,
    pub offer: Offer,
}

/// What a sidecar does on its own while the store is lost: `Lost`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Alone {
    /// The slots that it had.
    pub had: [u8; KEYS],
    pub starts: [Times; KEYS],
    /// Its part of each limit is one of so many.
    pub parts: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Life {
    #[default]
    Up,
    Paused,
    Dead,
}

/// The memory of one sidecar: its hold, what is under way, and what its guard knows (`Notes`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sidecar {
    pub life: Life,
    /// A claim was made then, and its reply is under way: the job and the attempt.
    pub claiming: Option<(usize, u8, Time)>,
    pub held: [Option<Held>; JOBS],
    /// A `take` was sent then. What the store said, if anything, is on its way.
    pub asking: Option<(Claim, Option<Verdict>, Time)>,
    /// The store is to hear that a job, or a claim of it, is over.
    pub ending: Option<(usize, Option<Number>)>,
    /// An `own` without an answer: the job and the claim that was offered.
    pub owning: Option<(usize, Number)>,
    /// A job that was found running got a row without limits.
    pub adopting: Option<Claim>,
    pub own: [Option<Row>; JOBS],
    pub doubt: [Option<Number>; JOBS],
    pub untold: [Option<Number>; JOBS],
    pub is_suspect: bool,
    /// The store was emptied, and is to be told of what is offered too.
    pub owes_offers: bool,
    pub alone: Option<Alone>,
}

/// By how much limits may be passed, by the named exceptions (chapter `promises`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Spare {
    /// Slots and starts that a failover forgot (34), or an emptied store (37).
    pub slots: [u8; KEYS],
    pub starts: [u8; KEYS],
    /// A sidecar went on alone (41).
    pub was_alone: bool,
}

/// What is wrong at once when it happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Wrong {
    /// A refusal changed what a key has used.
    pub spent: bool,
    /// A job went out whose claim was over.
    pub went_dead: bool,
    /// A held job was given up that nobody else has.
    pub gave_up: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct World {
    pub now: Time,
    pub store: Books,
    /// The books before the last writes, which a failover goes back to.
    pub before: SmallVec<[Books; 0]>,
    pub jobs: [Job; JOBS],
    pub sidecars: [Sidecar; SIDECARS],
    pub runs: SmallVec<[Run; 3]>,
    /// Starts that went to workers, as the store counted them.
    pub handed: [Times; KEYS],
    pub is_out: bool,
    pub cut: Option<usize>,
    /// After a failover, or where the store was emptied, some may not have put back yet what it must know:
    /// `Store::may_miss_rows`.
    pub is_filling: bool,
    /// The store was emptied: nothing starts before all have put back what they know.
    pub is_settling: bool,
    pub left: Left,
    pub spare: Spare,
    pub wrong: Wrong,
}

/// The keys of a job, as bits: one allows one slot, the other one start in a period.
pub const SLOT: u8 = 0b01;
pub const START: u8 = 0b10;
pub const BOTH: u8 = 0b11;
/// How many writes a failover forgets.
pub const FORGETS: usize = 2;

/// How large a model is.
#[derive(Clone, Debug)]
pub struct Size {
    pub sidecars: usize,
    /// The keys of each job.
    pub jobs: &'static [u8],
    /// When it ends.
    pub ticks: Time,
    pub left: Left,
    /// The first job runs already, and no store knows of it.
    pub one_runs: bool,
}

impl Size {
    /// So much goes wrong in it, in words. "runs": the first job runs already.
    pub fn of(sidecars: usize, jobs: &'static [u8], ticks: Time, wrong: &str) -> Size {
        let one_runs = wrong.starts_with("runs");
        let left = Left::of(wrong.trim_start_matches("runs"));
        Size {
            sidecars,
            jobs,
            ticks,
            left,
            one_runs,
        }
    }
}

impl World {
    pub fn new(size: &Size) -> World {
        let job = |nth: usize| Job {
            stage: if nth < size.jobs.len() {
                Stage::Waiting
            } else {
                Stage::Done
            },
            attempt: 0,
            number: 0,
        };
        let sidecar = |nth: usize| Sidecar {
            life: if nth < size.sidecars {
                Life::Up
            } else {
                Life::Dead
            },
            ..Sidecar::default()
        };
        let mut world = World {
            now: 1,
            store: Books {
                seen: [1; SIDECARS],
                ..Books::default()
            },
            before: SmallVec::new(),
            jobs: std::array::from_fn(job),
            sidecars: std::array::from_fn(sidecar),
            runs: SmallVec::new(),
            handed: Default::default(),
            is_out: false,
            cut: None,
            is_filling: false,
            is_settling: false,
            left: size.left,
            spare: Spare::default(),
            wrong: Wrong::default(),
        };
        if size.one_runs {
            (world.jobs[0].stage, world.jobs[0].attempt) = (Stage::Active(3), 1);
            let claim = Claim {
                job: 0,
                number: 0,
                attempt: 1,
                made: 0,
                keys: size.jobs[0],
            };
            world.runs.push(Run {
                claim,
                through: 0,
                is_silent: false,
                is_excused: true,
            });
        }
        world
    }

    /// Whether the backend has the job as active in that attempt.
    pub fn is_live(&self, job: usize, attempt: u8) -> bool {
        let job = &self.jobs[job];
        matches!(job.stage, Stage::Active(_)) && job.attempt == attempt
    }

    /// Whether a sidecar gets through to the store.
    pub fn reaches(&self, sidecar: usize) -> bool {
        !self.is_out && self.cut != Some(sidecar)
    }

    /// The world under other names: of all that differ only in what sidecars are called, mostly the same one.
    pub fn canonical(mut self) -> World {
        let mut order: [usize; SIDECARS] = std::array::from_fn(|nth| nth);
        order.sort_by(|a, b| {
            let of = |nth: usize| {
                (
                    &self.sidecars[nth],
                    self.store.seen[nth],
                    self.cut == Some(nth),
                )
            };
            of(*a)
                .cmp(&of(*b))
                .then_with(|| self.owned(*a).cmp(&self.owned(*b)))
        });
        if order
            .iter()
            .enumerate()
            .any(|(nth, sidecar)| nth != *sidecar)
        {
            self = self.with_sidecars(order);
        }
        self.handed
            .iter_mut()
            .for_each(|starts| starts.sort_unstable());
        self.runs.sort_unstable();
        self
    }

    /// Which rows are a sidecar's, and which runs went through it.
    fn owned(&self, sidecar: usize) -> ([bool; JOBS], u8) {
        let rows = self
            .store
            .rows
            .map(|row| row.is_some_and(|row| usize::from(row.owner) == sidecar));
        let runs = self.runs.iter().filter(|run| run.through == sidecar);
        (rows, runs.map(|run| 1 << run.claim.job).sum())
    }

    /// The world in which the sidecars stand in this order.
    fn with_sidecars(mut self, order: [usize; SIDECARS]) -> World {
        let mut to = [0; SIDECARS];
        for (nth, sidecar) in order.iter().enumerate() {
            to[*sidecar] = nth;
        }
        let rows = |rows: &mut [Option<Row>; JOBS]| {
            rows.iter_mut()
                .flatten()
                .for_each(|row| row.owner = to[usize::from(row.owner)] as u8);
        };
        for books in self.before.iter_mut().chain([&mut self.store]) {
            books.seen = order.map(|nth| books.seen[nth]);
            rows(&mut books.rows);
        }
        self.sidecars = order.map(|nth| std::mem::take(&mut self.sidecars[nth]));
        self.sidecars.iter_mut().for_each(|one| rows(&mut one.own));
        self.runs
            .iter_mut()
            .for_each(|run| run.through = to[run.through]);
        self.cut = self.cut.map(|nth| to[nth]);
        self
    }
}
