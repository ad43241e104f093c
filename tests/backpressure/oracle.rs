//! The estimate against an oracle: a queue that is changed here and behind our back, at random, with
//! looks that answer late. What it must never do is think that fewer jobs wait than do, as far as it
//! could know; and a look without anything on its way must find the truth.

use ojs_throttle::bounds::estimate::Estimate;
use ojs_throttle::bounds::{LookFound, Mark};
use proptest::prelude::*;

use super::prelude::*;

/// One step.
#[derive(Clone, Debug)]
enum Step {
    /// An enqueue of so many is sent on.
    Send(u64),
    /// The backend stores the oldest that it has not.
    Store,
    /// The oldest that was stored is answered.
    Answer,
    /// The oldest that was not stored is refused.
    Refuse,
    /// A FETCH is sent.
    Ask,
    /// The backend gives the oldest FETCH so many.
    Give(u64),
    /// The reply to the oldest FETCH comes.
    Come,
    /// So many come or go behind our back.
    Around(i64),
    /// A look begins, is answered by the backend, ends.
    Look,
    Tell,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..4_u64).prop_map(Step::Send),
        Just(Step::Store),
        Just(Step::Answer),
        Just(Step::Refuse),
        Just(Step::Ask),
        (0..3_u64).prop_map(Step::Give),
        Just(Step::Come),
        (-2..3_i64).prop_map(Step::Around),
        Just(Step::Look),
        Just(Step::Tell),
        Just(Step::End),
    ]
}

/// The truth, and what is on its way.
#[derive(Default)]
struct World {
    waiting: u64,
    sent: Vec<u64>,
    stored: Vec<u64>,
    asked: Vec<Mark>,
    given: Vec<(Mark, u64)>,
    look: Option<Option<u64>>,
    marks: u64,
    /// What came behind our back since the answer of the last look: nobody could know.
    unseen: u64,
    /// The same since the answer of the look that is on its way.
    unseen_by_look: u64,
}

impl World {
    fn mark(&mut self) -> Mark {
        self.marks += 1;
        Mark(self.marks)
    }

    fn take(&mut self, estimate: &mut Estimate, step: Step) {
        match step {
            Step::Send(jobs) => {
                estimate.reserve(jobs);
                self.sent.push(jobs);
            }
            Step::Store if !self.sent.is_empty() => {
                let jobs = self.sent.remove(0);
                self.waiting += jobs;
                self.stored.push(jobs);
            }
            Step::Answer if !self.stored.is_empty() => {
                let mark = self.mark();
                estimate.stored(self.stored.remove(0), mark);
            }
            Step::Refuse if !self.sent.is_empty() => estimate.refused(self.sent.remove(0)),
            Step::Ask => {
                let mark = self.mark();
                self.asked.push(mark);
            }
            Step::Give(jobs) if !self.asked.is_empty() => {
                let jobs = jobs.min(self.waiting);
                self.waiting -= jobs;
                self.given.push((self.asked.remove(0), jobs));
            }
            Step::Come if !self.given.is_empty() => {
                let (sent, jobs) = self.given.remove(0);
                estimate.left(jobs, sent);
            }
            Step::Around(change) if change >= 0 => {
                self.waiting += change.unsigned_abs();
                self.unseen += change.unsigned_abs();
                self.unseen_by_look += change.unsigned_abs();
            }
            Step::Around(change) => {
                self.waiting = self.waiting.saturating_sub(change.unsigned_abs());
            }
            Step::Look if self.look.is_none() => {
                assert!(estimate.begin());
                estimate.note_asked();
                self.look = Some(None);
            }
            Step::Tell if self.look == Some(None) => {
                self.look = Some(Some(self.waiting));
                self.unseen_by_look = 0;
            }
            Step::End => {
                if let Some(Some(available)) = self.look {
                    let mark = self.mark();
                    let counts = Counts {
                        available,
                        ..Counts::default()
                    };
                    let found = LookFound {
                        counts,
                        hidden: 0,
                        held: HeldCount::default(),
                        elsewhere: 0,
                    };
                    estimate.correct(&found, Instant::now(), mark);
                    self.unseen = self.unseen_by_look;
                    self.look = None;
                }
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn never_fewer_than_there_could_be_known_and_exact_when_all_is_quiet(
        steps in prop::collection::vec(step(), 1..200)
    ) {
        let (mut world, mut estimate) = (World::default(), Estimate::default());
        for step in [Step::Look, Step::Tell, Step::End].into_iter().chain(steps) {
            world.take(&mut estimate, step.clone());
            let thought = estimate.depth(HeldCount::default());
            prop_assert!(
                thought + world.unseen >= world.waiting,
                "after {step:?}: {thought} thought, {} waiting", world.waiting
            );
        }
        // All that is on its way arrives, and then a look.
        for _ in 0..200 {
            for step in [Step::Store, Step::Answer, Step::Give(0), Step::Come, Step::Tell, Step::End] {
                world.take(&mut estimate, step);
            }
        }
        for step in [Step::Look, Step::Tell, Step::End] {
            world.take(&mut estimate, step);
        }
        prop_assert_eq!(estimate.depth(HeldCount::default()), world.waiting);
    }
}
