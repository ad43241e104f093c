//! Windows with edges: those that divide all time evenly, and those that a calendar on the wall has.
//!
//! Where an edge is follows from the time alone, so that every sidecar and every store finds the same
//! one. The rules of time zones are in the program: the same on every host, with nothing to install.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;

use super::time::Timestamp;

/// How long a calendar window is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// From midnight to midnight: 23 or 25 hours where clocks are changed.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
    /// From the first of January to the next.
    Year,
}

impl Unit {
    /// All of them.
    pub const ALL: [Unit; 4] = [Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// Its ISO 8601 duration.
    pub fn iso(self) -> &'static str {
        match self {
            Unit::Day => "P1D",
            Unit::Week => "P1W",
            Unit::Month => "P1M",
            Unit::Year => "P1Y",
        }
    }

    /// The most days that it has.
    pub fn days(self) -> u64 {
        match self {
            Unit::Day => 1,
            Unit::Week => 7,
            Unit::Month => 31,
            Unit::Year => 366,
        }
    }

    /// The first day of the unit that has `date` in it.
    fn first(self, date: Date) -> Date {
        match self {
            Unit::Day => date,
            Unit::Week => {
                let since = i64::from(date.weekday().since(Weekday::Monday));
                date.saturating_sub(jiff::Span::new().days(since))
            }
            Unit::Month => date.first_of_month(),
            Unit::Year => date.first_of_year(),
        }
    }

    /// The first day of the next one.
    fn next(self, first: Date) -> Date {
        let span = jiff::Span::new();
        first.saturating_add(match self {
            Unit::Day => span.days(1),
            Unit::Week => span.weeks(1),
            Unit::Month => span.months(1),
            Unit::Year => span.years(1),
        })
    }
}

/// A time zone by its IANA name. Cheap to clone; equal when the names are.
#[derive(Clone)]
pub struct Zone(Arc<NamedZone>);

struct NamedZone {
    name: Box<str>,
    rules: TimeZone,
}

impl Zone {
    /// Finds the zone: `UTC`, `Europe/Oslo`, in upper or lower case.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn new(name: &str) -> Result<Zone, UnknownZone> {
        let unknown = || UnknownZone(name.into());
        let rules = TimeZone::get(name).map_err(|_| unknown())?;
        let name = rules.iana_name().ok_or_else(unknown)?.into();
        Ok(Zone(Arc::new(NamedZone { name, rules })))
    }

    /// Its name, as the database writes it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The first moment of a day. Where clocks leap over midnight, that is when they have leapt.
    fn begins(&self, date: Date) -> Option<Timestamp> {
        let first = date.to_zoned(self.0.rules.clone()).ok()?.timestamp();
        Some(Timestamp(
            u64::try_from(first.as_microsecond()).unwrap_or(0),
        ))
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.name == other.0.name
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

/// No time zone has this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be a time zone such as \"UTC\" or \"Europe/Oslo\"; none is named {0:?}")]
pub struct UnknownZone(String);

/// One window: from `starts` on, up to but not at `ends`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Edges {
    /// Its first microsecond.
    pub starts: Timestamp,
    /// The first microsecond of the next window.
    pub ends: Timestamp,
}

impl Edges {
    /// The window of `period` microseconds around `now`; they begin at multiples of it since 1970.
    pub(super) fn fixed(period: u64, now: Timestamp) -> Edges {
        let past = now.0.checked_rem(period).unwrap_or(0);
        let starts = Timestamp(now.0 - past);
        Edges {
            starts,
            ends: starts.plus(period),
        }
    }

    /// The calendar's window around `now`. All time is in exactly one, whatever clocks do: a day begins
    /// when its date is first on the wall, and a wall that goes back to the day before changes nothing.
    pub(super) fn calendar(unit: Unit, zone: &Zone, now: Timestamp) -> Edges {
        Edges::around(unit, zone, now).unwrap_or(Edges {
            starts: Timestamp::default(),
            // Thousands of years from here.
            ends: Timestamp::NEVER,
        })
    }

    fn around(unit: Unit, zone: &Zone, now: Timestamp) -> Option<Edges> {
        let at = jiff::Timestamp::from_microsecond(i64::try_from(now.0).ok()?).ok()?;
        let mut first = unit.first(zone.0.rules.to_datetime(at).date());
        let mut starts = zone.begins(first)?;
        loop {
            let next = unit.next(first);
            let ends = zone.begins(next)?;
            if now < ends || next == first {
                return Some(Edges { starts, ends });
            }
            (first, starts) = (next, ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let at: jiff::Timestamp = text.parse().unwrap();
        Timestamp(at.as_microsecond() as u64)
    }

    fn edges(unit: Unit, zone: &str, now: &str) -> (Timestamp, Timestamp) {
        let edges = Edges::calendar(unit, &Zone::new(zone).unwrap(), at(now));
        (edges.starts, edges.ends)
    }

    #[test]
    fn fixed_windows_divide_all_time() {
        let minute = Edges::fixed(60_000_000, at("2026-11-20T13:14:15.5Z"));
        assert_eq!(minute.starts, at("2026-11-20T13:14:00Z"));
        assert_eq!(minute.ends, at("2026-11-20T13:15:00Z"));
        assert_eq!(Edges::fixed(60_000_000, minute.ends).starts, minute.ends);
        assert_eq!(Edges::fixed(u64::MAX, minute.ends).ends, Timestamp::NEVER);
    }

    /// A window's unit, zone, a moment in it, and its edges.
    const WALLS: &str = "
        day   UTC              2026-11-20T13:00:00Z        2026-11-20T00:00:00Z 2026-11-21T00:00:00Z
        day   Asia/Kolkata     2026-11-20T18:29:59.999999Z 2026-11-19T18:30:00Z 2026-11-20T18:30:00Z
        day   Asia/Kolkata     2026-11-20T18:30:00Z        2026-11-20T18:30:00Z 2026-11-21T18:30:00Z
        23h   Europe/Oslo      2026-03-29T12:00:00Z        2026-03-28T23:00:00Z 2026-03-29T22:00:00Z
        25h   Europe/Oslo      2026-10-25T12:00:00Z        2026-10-24T22:00:00Z 2026-10-25T23:00:00Z
        leapt America/Santiago 2026-09-06T12:00:00Z        2026-09-06T04:00:00Z 2026-09-07T03:00:00Z
        again America/St_Johns 2010-11-07T02:31:30Z        2010-11-07T02:30:00Z 2010-11-08T03:30:00Z
        again America/St_Johns 2010-11-07T02:45:00Z        2010-11-07T02:30:00Z 2010-11-08T03:30:00Z
        never Pacific/Apia     2011-12-30T09:59:59Z        2011-12-29T10:00:00Z 2011-12-30T10:00:00Z
        never Pacific/Apia     2011-12-30T10:00:00Z        2011-12-30T10:00:00Z 2011-12-31T10:00:00Z
        week  UTC              2026-11-20T13:00:00Z        2026-11-16T00:00:00Z 2026-11-23T00:00:00Z
        week  UTC              2026-11-16T00:00:00Z        2026-11-16T00:00:00Z 2026-11-23T00:00:00Z
        month UTC              2028-02-29T23:59:59Z        2028-02-01T00:00:00Z 2028-03-01T00:00:00Z
        month America/New_York 2026-11-01T04:30:00Z        2026-11-01T04:00:00Z 2026-12-01T05:00:00Z
        year  UTC              2026-11-20T13:00:00Z        2026-01-01T00:00:00Z 2027-01-01T00:00:00Z";

    /// Days of 23 and 25 hours, one that begins at one o'clock, one whose first minute the wall shows
    /// twice, and one that never was.
    #[test]
    fn calendar_windows_follow_the_wall() {
        for line in WALLS.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let unit = match words[0] {
                "week" => Unit::Week,
                "month" => Unit::Month,
                "year" => Unit::Year,
                _ => Unit::Day,
            };
            assert_eq!(
                edges(unit, words[1], words[2]),
                (at(words[3]), at(words[4])),
                "{line}"
            );
        }
    }

    #[test]
    fn every_moment_is_in_one_window() {
        let zones = [
            "America/St_Johns",
            "Pacific/Apia",
            "Africa/Cairo",
            "America/Havana",
            "Australia/Lord_Howe",
        ];
        for zone in zones.map(|name| Zone::new(name).unwrap()) {
            for unit in [Unit::Day, Unit::Week, Unit::Month] {
                let mut edges = Edges::calendar(unit, &zone, at("2009-01-01T00:00:00Z"));
                while edges.ends < at("2027-01-01T00:00:00Z") {
                    assert!(edges.starts < edges.ends);
                    let last = Timestamp(edges.ends.0 - 1);
                    for now in [edges.starts, edges.starts.plus(59_000_000), last] {
                        assert_eq!(Edges::calendar(unit, &zone, now), edges, "{zone:?} {now:?}");
                    }
                    let next = Edges::calendar(unit, &zone, edges.ends);
                    assert_eq!(next.starts, edges.ends);
                    edges = next;
                }
            }
        }
    }

    #[test]
    fn zones_have_names() {
        assert_eq!(
            Zone::new("europe/oslo").unwrap(),
            Zone::new("Europe/Oslo").unwrap()
        );
        assert_eq!(Zone::new("utc").unwrap().name(), "UTC");
        for wrong in [
            "",
            "Oslo",
            "+02:00",
            "local",
            "Mars/Base",
            "../../etc/passwd",
        ] {
            assert!(Zone::new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_end_of_time_is_a_window_too() {
        let utc = Zone::new("UTC").unwrap();
        for now in [
            Timestamp(0),
            Timestamp(250_000_000_000_000_000),
            Timestamp::NEVER,
        ] {
            let edges = Edges::calendar(Unit::Year, &utc, now);
            assert!(edges.starts <= now && edges.starts < edges.ends);
        }
    }
}
