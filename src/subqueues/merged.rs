//! Lists of queues with one entry for each base: numbers of its subqueues are added to its own.

use std::borrow::Cow;

use hashbrown::HashMap;

use super::Subqueues;
use super::names::{self, NamePlace, ReplyKind};
use ojs_json::{Json, Kind, Splice};
use ojs_policy::subqueue;
use ojs_wire::ojs::{DEPTH, REPLY_DEPTH};

/// Numbers of jobs, and what else adds up.
const COUNTS: [&str; 15] = [
    "available",
    "active",
    "scheduled",
    "retryable",
    "completed",
    "discarded",
    "cancelled",
    "pending",
    "dead",
    "failed",
    "depth",
    "dispatched",
    "processed",
    "processed_per_minute",
    "failed_per_minute",
];

/// Objects in an entry in which such numbers stand.
const PLACES: [&str; 5] = ["counts", "stats", "jobs", "queue", "throughput"];

/// A reply whose lists and tables of queues have each base once, also where it stands behind one of its subqueues.
/// `None`: it names no subqueue, or is no JSON.
pub fn merged(text: &[u8], kind: ReplyKind, subqueues: &Subqueues) -> Option<Vec<u8>> {
    if !subqueues.any() || !subqueue::may_name(text) {
        return None;
    }
    let whole = Json::parse(text, REPLY_DEPTH).ok()?;
    let (mut splice, merging) = (Splice::new(), Merging { kind, subqueues });
    merging.merge(whole, NamePlace::Top, &mut splice, DEPTH);
    let text = splice.apply(text);
    Some(names::changed(&text, kind, subqueues).unwrap_or(text))
}

/// What is known of the reply whose lists are merged.
#[derive(Clone, Copy)]
struct Merging<'s> {
    kind: ReplyKind,
    subqueues: &'s Subqueues,
}

impl Merging<'_> {
    /// Merges what is in a value, so many levels deep. Says how many entries of a list have gone.
    fn merge(self, value: Json<'_>, place: NamePlace, splice: &mut Splice, levels: usize) -> usize {
        let may_name = |_: &usize| place != NamePlace::Own && subqueue::may_name(value.raw());
        let Some(levels) = levels.checked_sub(1).filter(may_name) else {
            return 0;
        };
        if value.kind() == Kind::Array {
            return self.merge_list(value, place, splice, levels);
        }
        if place == NamePlace::Queues {
            self.merge_table(value, splice);
        }
        let inside = value.members().map(|member| {
            let name = member.name.text().unwrap_or_default();
            let place = place.member(&name, self.kind);
            self.merge(member.value, place, splice, levels)
        });
        let gone: usize = inside.sum();
        let total = value.get_exact("pagination");
        let total = total.and_then(|pagination| pagination.get_exact("total"));
        if let Some((total, listed)) = total.and_then(|total| Some((total, total.int()?))) {
            let left = listed.saturating_sub(i64::try_from(gone).unwrap_or(i64::MAX));
            splice.replace(total.range(), left.max(0).to_string());
        }
        0
    }

    /// A list of names, or of objects that have them.
    fn merge_list(
        self,
        list: Json<'_>,
        place: NamePlace,
        splice: &mut Splice,
        levels: usize,
    ) -> usize {
        let of_item = place.item(self.kind);
        for item in list.items() {
            // What is done in one that goes, or is written anew, goes with it.
            self.merge(item, of_item, splice, levels);
        }
        if of_item != NamePlace::Queue {
            return 0;
        }
        let name_of =
            |item: Json<'_>| Some(item.text().or_else(|| item.text_of("name"))?.into_owned());
        let items: Vec<Json<'_>> = list.items().collect();
        let named = items.iter().map(|item| (name_of(*item), *item));
        let (groups, repeated) = self.grouped(named);
        for nth in &repeated {
            let before = nth.checked_sub(1).and_then(|before| items.get(before));
            if let (Some(before), Some(item)) = (before, items.get(*nth)) {
                splice.replace(before.range().end..item.range().end, Vec::new());
            }
        }
        for SameBase { place, parts } in groups {
            splice.replace(place.range(), sum(&parts));
        }
        repeated.len()
    }

    /// An object with a member for each queue.
    fn merge_table(self, object: Json<'_>, splice: &mut Splice) {
        let members: Vec<_> = object.members().collect();
        let named = members.iter().map(|member| {
            let name = member.name.text().map(Cow::into_owned);
            (name, member.value)
        });
        let (groups, repeated) = self.grouped(named);
        for member in repeated.iter().filter_map(|nth| members.get(*nth)) {
            splice.remove_member(object, *member);
        }
        for SameBase { place, parts } in groups {
            splice.replace(place.range(), sum(&parts));
        }
    }

    /// Groups values by the bases of their names. Only bases with subqueues are groups; `usize`s are the places of what a
    /// group has beside its first.
    fn grouped<'a>(
        self,
        named: impl Iterator<Item = (Option<String>, Json<'a>)>,
    ) -> (Vec<SameBase<'a>>, Vec<usize>) {
        let mut bases: HashMap<String, (bool, SameBase<'a>, Vec<usize>)> = HashMap::new();
        for (nth, (name, value)) in named.enumerate() {
            let Some(name) = name else { continue };
            let base = self.subqueues.base_of(&name);
            let is_sub = base.len() < name.len();
            match bases.get_mut(base) {
                Some((has_subs, group, others)) => {
                    *has_subs |= is_sub;
                    let at = if is_sub { group.parts.len() } else { 0 };
                    group.parts.insert(at, value);
                    others.push(nth);
                }
                None => {
                    let (place, parts) = (value, vec![value]);
                    let group = SameBase { place, parts };
                    bases.insert(base.to_owned(), (is_sub, group, Vec::new()));
                }
            }
        }
        let with_subs = bases.into_values().filter(|(has_subs, ..)| *has_subs);
        let (groups, others): (Vec<_>, Vec<_>) =
            with_subs.map(|(_, group, others)| (group, others)).unzip();
        (groups, others.concat())
    }
}

/// What is said of a base and of its subqueues.
struct SameBase<'a> {
    /// Where it is said first.
    place: Json<'a>,
    /// The base's own comes first, if there is one.
    parts: Vec<Json<'a>>,
}

/// The first of these values with the numbers of all.
fn sum(parts: &[Json<'_>]) -> Vec<u8> {
    let Some((first, others)) = parts.split_first() else {
        return Vec::new();
    };
    let numbers = parts.iter().map(|part| part.int());
    if let Some(sum) = numbers.sum::<Option<i64>>() {
        return sum.to_string().into_bytes();
    }
    let mut splice = Splice::new();
    if let Ok(alone) = Json::parse(first.raw(), REPLY_DEPTH) {
        add(alone, others, &mut splice);
    }
    splice.apply(first.raw())
}

/// Adds the numbers of objects to those of one like them.
fn add(to: Json<'_>, others: &[Json<'_>], splice: &mut Splice) {
    for member in to.members() {
        let Some(name) = member.name.text() else {
            continue;
        };
        let theirs: Vec<Json<'_>> = (others.iter())
            .filter_map(|other| other.get_exact(&name))
            .collect();
        match member.value.int() {
            Some(own) if COUNTS.contains(&&*name) => {
                let theirs = theirs.iter().filter_map(Json::int);
                let sum = theirs.fold(own, i64::saturating_add);
                splice.replace(member.value.range(), sum.to_string());
            }
            None if PLACES.contains(&&*name) => add(member.value, &theirs, splice),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_base_is_listed_once_with_the_numbers_of_all() {
        let subqueues = Subqueues::of_file(&["mail", "c", "m"]);
        let kind = ReplyKind {
            lists_queues: true,
            ..ReplyKind::default()
        };
        for (text, shown) in [
            (r#"{"items":["mail"]}"#, None),
            (
                r#"{"queues":["a", "mail-ojst-7f" ,"b","mail","mail-ojst-00","c-ojst-00"]}"#,
                Some(r#"{"queues":["a", "mail" ,"b","c"]}"#),
            ),
            (
                r#"{"items":[{"name":"mail-ojst-7f","paused":false,"counts":{"active":1,"n":1}},
                {"name":"a"},{"name":"mail","paused":true,"counts":{"active":2,"n":2},"configuration":{"active":5}},
                {"name":"mail-ojst-00","counts":{"active":4}}],"pagination":{"total":9,"page":1}}"#,
                Some(
                    r#"{"items":[{"name":"mail","paused":true,"counts":{"active":7,"n":2},"configuration":{"active":5}},
                {"name":"a"}],"pagination":{"total":7,"page":1}}"#,
                ),
            ),
            (
                r#"{"by_queue":{"a":1,"mail-ojst-7f":2,"mail":3,"mail-ojst-00":4}}"#,
                Some(r#"{"by_queue":{"a":1,"mail":9}}"#),
            ),
            (
                r#"[{"id":"1","queue":"m-ojst-7f","args":["m","m-ojst-7f",5]},{"id":"2","queue":"m-ojst-7f"}]"#,
                Some(
                    r#"[{"id":"1","queue":"m","args":["m","m-ojst-7f",5]},{"id":"2","queue":"m"}]"#,
                ),
            ),
            (
                r#"{"tags":["mail","mail-ojst-00"],"items":["d","d-ojst-00"]}"#,
                Some(r#"{"tags":["mail","mail-ojst-00"],"items":["d","d-ojst-00"]}"#),
            ),
            ("no -ojst- JSON", None),
        ] {
            let found = merged(text.as_bytes(), kind, &subqueues)
                .map(|text| String::from_utf8(text).unwrap());
            assert_eq!(found.as_deref(), shown, "{text}");
        }
    }
}
