//! Rows as the columns of a table.

use super::super::engine::{Entry, Slot, Slots};
use super::super::{Gen, Place, Row, record};
use crate::limit::{Limited, Timestamp, Undo};

/// The columns.
#[derive(Clone, Debug)]
pub(in crate::store) struct Flat {
    pub(in crate::store) job: String,
    pub(in crate::store) claim_number: i64,
    pub(in crate::store) is_out: bool,
    pub(in crate::store) until: i64,
    pub(in crate::store) owner: String,
    pub(in crate::store) lasts: i64,
    pub(in crate::store) lane: String,
    pub(in crate::store) claim: String,
    pub(in crate::store) limits: String,
    pub(in crate::store) taken: Vec<u8>,
    pub(in crate::store) started: Option<i64>,
}

/// A time or a length as databases have it: their numbers have a sign.
pub(in crate::store) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// How many rows a database may give at most.
pub(in crate::store) fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// A time or a length that was written as a [`number`].
pub(in crate::store) fn unsigned(value: i64) -> u64 {
    match u64::try_from(value) {
        Ok(value) if value < i64::MAX.unsigned_abs() => value,
        Ok(_) => u64::MAX,
        Err(_) => 0,
    }
}

impl Flat {
    pub(in crate::store) fn of(kept: &Entry) -> Flat {
        let row = &kept.row;
        let claimed = &row.claimed;
        Flat {
            job: claimed.job.to_string(),
            claim_number: number(claimed.generation.0),
            is_out: row.place == Place::Out,
            until: number(row.until.0),
            owner: kept.owner.to_string(),
            lasts: number(claimed.visibility),
            lane: record::lane(claimed.scope, &claimed.queue),
            claim: record::claim(claimed),
            limits: record::limits(&claimed.limited),
            taken: pack(kept),
            started: row.started.map(|at| number(at.0)),
        }
    }

    /// The row; `None`: somebody else wrote it.
    pub(in crate::store) fn kept(self) -> Option<Entry> {
        let texts = (&*self.claim, &*self.limits);
        let claim = Gen(unsigned(self.claim_number));
        let claimed = record::claimed(&self.job, claim, unsigned(self.lasts), texts)?;
        let slots = unpack(&self.taken, &claimed.limited)?;
        let place = match self.is_out {
            true => Place::Out,
            false => Place::Held,
        };
        Some(Entry {
            row: Row {
                started: self.started.map(|at| Timestamp(unsigned(at))),
                ..Row::of(claimed, place, Timestamp(unsigned(self.until)))
            },
            owner: self.owner.into(),
            slots,
        })
    }
}

/// The names of the keys that a row has slots of.
pub(in crate::store) fn keys_of(kept: &Entry) -> impl Iterator<Item = String> {
    let taken = kept.taken();
    taken.map(|(one, _)| record::name(one.space, &one.key))
}

/// Each key's name, and how to undo its part of the start, both behind their lengths.
fn pack(kept: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |part: &[u8]| {
        // Names are at most a few hundred bytes long.
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        bytes.extend(length.to_le_bytes());
        bytes.extend(part.iter().take(usize::from(length)));
    };
    for (one, slot) in kept.taken() {
        put(record::name(one.space, &one.key).as_bytes());
        put(&slot.undo.as_ref().map(Undo::pack).unwrap_or_default());
    }
    bytes
}

fn unpack(mut bytes: &[u8], limited: &[Limited]) -> Option<Slots> {
    let mut slots = Slots::new();
    while !bytes.is_empty() {
        let mut part = || {
            let (length, rest) = bytes.split_first_chunk::<2>()?;
            let (part, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            bytes = rest;
            Some(part)
        };
        let (name, undo) = (part()?, part()?);
        let names_it = |one: &Limited| record::name(one.space, &one.key).as_bytes() == name;
        slots.push(Slot {
            first: limited.iter().position(names_it)?,
            undo: match undo {
                [] => None,
                packed => Some(Undo::unpack(packed)?),
            },
        });
    }
    Some(slots)
}
