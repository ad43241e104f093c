//! Rows as the columns of a table.

use std::sync::Arc;

use super::super::{Claimed, Gen, Place, record};
use crate::limit::{Timestamp, Undo};

/// A row with all that is kept of it.
#[derive(Clone, Debug)]
pub(in crate::store) struct Kept {
    pub(super) claimed: Claimed,
    pub(super) place: Place,
    pub(super) until: Timestamp,
    pub(super) started: Option<Timestamp>,
    pub(super) hidden: bool,
    pub(super) owner: Arc<str>,
    /// Empty unless it is out.
    pub(super) taken: Vec<Taken>,
    /// When it was last written.
    pub(super) touched: Timestamp,
}

/// One key's part of a start: enough to end it or to undo it.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    /// The key's [`record::name`].
    pub(super) name: String,
    /// `None`: the start was not counted.
    pub(super) undo: Option<Undo>,
}

/// The columns.
#[derive(Clone, Debug)]
pub(in crate::store) struct Flat {
    pub(in crate::store) job: String,
    pub(in crate::store) claim_number: i64,
    pub(in crate::store) is_out: bool,
    pub(in crate::store) until: i64,
    pub(in crate::store) owner: String,
    pub(in crate::store) hidden: bool,
    pub(in crate::store) lasts: i64,
    pub(in crate::store) lane: String,
    pub(in crate::store) claim: String,
    pub(in crate::store) limits: String,
    pub(in crate::store) taken: Vec<u8>,
    pub(in crate::store) started: Option<i64>,
    pub(in crate::store) touched: i64,
}

/// A time or a length as databases have it: their numbers have a sign.
pub(in crate::store) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A time or a length that was written as a [`number`].
pub(in crate::store) fn unsigned(value: i64) -> u64 {
    match u64::try_from(value) {
        Ok(value) if value < i64::MAX.unsigned_abs() => value,
        Ok(_) => u64::MAX,
        Err(_) => 0,
    }
}

impl Kept {
    pub(in crate::store) fn flat(&self) -> Flat {
        let claimed = &self.claimed;
        Flat {
            job: claimed.job.to_string(),
            claim_number: number(claimed.generation.0),
            is_out: self.place == Place::Out,
            until: number(self.until.0),
            owner: self.owner.to_string(),
            hidden: self.hidden,
            lasts: number(claimed.visibility),
            lane: record::lane(claimed.scope, &claimed.queue),
            claim: record::claim(claimed),
            limits: record::limits(&claimed.limited),
            taken: pack(&self.taken),
            started: self.started.map(|at| number(at.0)),
            touched: number(self.touched.0),
        }
    }

    /// The keys that it has slots of.
    pub(in crate::store) fn names(&self) -> impl Iterator<Item = &str> {
        self.taken.iter().map(|taken| taken.name.as_str())
    }
}

impl Flat {
    /// The row; `None`: somebody else wrote it.
    pub(in crate::store) fn kept(self) -> Option<Kept> {
        let texts = record::Texts {
            claim: &self.claim,
            limits: &self.limits,
        };
        let claim = Gen(unsigned(self.claim_number));
        Some(Kept {
            claimed: record::claimed(&self.job, claim, unsigned(self.lasts), &texts)?,
            place: match self.is_out {
                true => Place::Out,
                false => Place::Held,
            },
            until: Timestamp(unsigned(self.until)),
            started: self.started.map(|at| Timestamp(unsigned(at))),
            hidden: self.hidden,
            owner: self.owner.into(),
            taken: unpack(&self.taken)?,
            touched: Timestamp(unsigned(self.touched)),
        })
    }
}

/// Each key's name, and how to undo its part of the start, both behind their lengths.
fn pack(taken: &[Taken]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |part: &[u8]| {
        // Names are at most a few hundred bytes long.
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        bytes.extend(length.to_le_bytes());
        bytes.extend(part.iter().take(usize::from(length)));
    };
    for one in taken {
        put(one.name.as_bytes());
        put(&one.undo.as_ref().map(Undo::pack).unwrap_or_default());
    }
    bytes
}

fn unpack(mut bytes: &[u8]) -> Option<Vec<Taken>> {
    let mut part = || {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (part, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        bytes = rest;
        Some((part, bytes.is_empty()))
    };
    let mut all = Vec::new();
    while let Some((name, _)) = part() {
        let (undo, last) = part()?;
        let undo = match undo {
            [] => None,
            packed => Some(Undo::unpack(packed)?),
        };
        let name = String::from_utf8(name.to_vec()).ok()?;
        all.push(Taken { name, undo });
        if last {
            break;
        }
    }
    Some(all)
}
