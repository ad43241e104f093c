//! Reads `mode` and `enforce_percent`: whether an entry decides, or is only tried.

use ojs_policy::Sample;
use ojs_policy::fields::Fields;
use ojs_reader::TomlTable;

/// Whether an entry decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum EntryMode {
    /// It does.
    Enforce,
    /// It is only tried, but for so many jobs in a hundred.
    Shadow(u8),
}

impl EntryMode {
    /// The jobs for which it decides, if there are any.
    pub(super) fn enforced(self) -> Option<Sample> {
        match self {
            EntryMode::Enforce => Some(Sample::All),
            EntryMode::Shadow(0) => None,
            EntryMode::Shadow(percent) => Some(Sample::First(percent)),
        }
    }

    /// The jobs for which it is only tried, if there are any.
    pub(super) fn tried(self) -> Option<Sample> {
        match self {
            EntryMode::Enforce => None,
            EntryMode::Shadow(0) => Some(Sample::All),
            EntryMode::Shadow(percent) => Some(Sample::AllBut(percent)),
        }
    }
}

/// Reads both.
pub(super) fn mode(table: &mut TomlTable<'_>) -> EntryMode {
    const PERCENT: &str = "enforce_percent";
    let is_shadow = table.word_or("mode", false, &[("enforce", false), ("shadow", true)]);
    let percent = table.int(PERCENT).ok().flatten();
    let fits = percent.map(|percent| u8::try_from(percent).unwrap_or(0));
    if fits.is_some_and(|percent| !(1..=100).contains(&percent)) {
        let hint = "so many jobs in a hundred are under the entry; leave it out to try it on all";
        table.refuse(PERCENT, "must be from 1 to 100", hint);
    } else if percent.is_some() && !is_shadow && !table.is_reported("mode") {
        let hint = "add mode = \"shadow\": the entry is tried on the other jobs";
        table.refuse(PERCENT, "needs mode = \"shadow\" beside it", hint);
    }
    match is_shadow {
        true => EntryMode::Shadow(fits.unwrap_or(0)),
        false => EntryMode::Enforce,
    }
}
