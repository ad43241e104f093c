//! Rows as the columns of a table.

use super::super::engine::{Entry, Slot, Slots};
use super::super::{Gen, Place, Row, record};
use super::value::{SqlValue, unsigned};
use ojs_limit::{Limited, Timestamp, Undo};

/// The columns of a row, in the order of its table, but for the last one.
pub(super) fn columns(kept: &Entry) -> Vec<SqlValue> {
    let (row, claimed) = (&kept.row, &kept.row.claimed);
    vec![
        SqlValue::from(&*claimed.job),
        claimed.generation.0.into(),
        u64::from(row.is_out()).into(),
        row.place.written().0.into(),
        SqlValue::from(&*kept.owner),
        claimed.visibility.into(),
        SqlValue::Text(record::lane(claimed.scope, &claimed.queue)),
        SqlValue::Text(record::claim(claimed)),
        SqlValue::Text(record::limits(&claimed.limited)),
        SqlValue::Bytes(pack(kept)),
        row.started.map_or(SqlValue::Nothing, |at| at.0.into()),
    ]
}

/// A row from what was read of its columns; `None`: somebody else wrote it.
pub(super) fn read(columns: Vec<SqlValue>) -> Option<Entry> {
    let [
        job,
        claim,
        is_out,
        until,
        owner,
        lasts,
        about,
        limits,
        taken,
        started,
    ] = columns.try_into().ok()?;
    let claim = Gen(unsigned(claim.number()?));
    let lasts = unsigned(lasts.number()?);
    let (about, limits) = (about.text()?, limits.text()?);
    let claimed = record::claimed(&job.text()?, claim, lasts, (&about, &limits))?;
    let slots = unpack(&taken.bytes()?, &claimed.limited)?;
    let until = Timestamp(unsigned(until.number()?));
    let place = match is_out.number()? {
        0 => Place::of_held(until),
        _ => Place::Out(until.into()),
    };
    Some(Entry {
        row: Row {
            started: started.number().map(|at| Timestamp(unsigned(at))),
            ..Row::of(claimed, place)
        },
        owner: owner.text()?.into(),
        slots,
    })
}

/// The names of the keys that a row has slots of.
pub(crate) fn keys_of(kept: &Entry) -> impl Iterator<Item = String> {
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
