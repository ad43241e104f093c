//! What a name that is not known may have meant.

use super::limits::{RATE, THROTTLE};

/// The members of a job's policy.
pub(super) const POLICY: [&str; 10] = [
    "key",
    "concurrency",
    "rate",
    "throttle",
    "limit",
    "period",
    "window",
    "tz",
    "max_per_second",
    "on_limit",
];

/// The word nearest to `name`, if it is near enough to have been meant.
pub fn nearest<'w>(name: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let near = words.map(|word| (edits(name, word), word)).min()?;
    (near.0 <= 1 + near.1.chars().count() / 4).then_some(near.1)
}

/// How many insertions, deletions, replacements and swaps of neighbours lie between two words.
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let at = |row: &[usize], place: usize| row.get(place).copied().unwrap_or(0);
    // Rows of a table: how far the letters of `one` so far, and one and two less, are from each beginning of `other`.
    let mut row: Vec<usize> = (0..=other.len()).collect();
    let (mut above, mut twice_above) = (row.clone(), row.clone());
    let mut before = None;
    for (i, a) in one.chars().enumerate() {
        std::mem::swap(&mut above, &mut twice_above);
        std::mem::swap(&mut row, &mut above);
        row.clear();
        row.push(i + 1);
        for (j, b) in other.iter().enumerate() {
            let mut here = (at(&above, j) + usize::from(a != *b))
                .min(at(&row, j) + 1)
                .min(at(&above, j + 1) + 1);
            if let Some(two_less) = j.checked_sub(1)
                && (before, other.get(two_less)) == (Some(*b), Some(&a))
            {
                here = here.min(at(&twice_above, two_less) + 1);
            }
            row.push(here);
        }
        before = Some(a);
    }
    at(&row, other.len())
}

/// What an unknown member may have meant: the nearest one, or all that are known.
pub(super) fn advice(name: &str, here: &[&str]) -> String {
    let near = nearest(&name.to_ascii_lowercase(), here.iter().copied());
    near.map_or_else(
        || format!("known are `{}`", here.join("`, `")),
        |near| format!("did you mean `{near}`?"),
    )
}

/// What an unknown member must have meant; `None`: it may be one of another text.
pub(super) fn misspelt(name: &str, here: &[&str]) -> Option<String> {
    // To refuse takes more than to suggest: `name` and `note` are near to `rate`.
    let length = name.chars().count();
    let slip = |known: &&str| {
        let most = known.len() / 3;
        // A body may be full of unknown names, and their lengths tell most of them apart.
        length.abs_diff(known.len()) <= most && edits(name, known) <= most
    };
    if let Some(near) = here.iter().find(|known| slip(known)) {
        return Some(format!("did you mean `{near}`?"));
    }
    if THROTTLE.fields.contains(&name) {
        Some("it belongs in `throttle`".to_owned())
    } else if RATE.fields.contains(&name) {
        Some("it belongs in `rate`".to_owned())
    } else {
        let beside = POLICY.contains(&name);
        beside.then(|| "it belongs beside `key`".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word() {
        let words = ["max_wait", "claim_budget", "listen"];
        let near = |name| nearest(name, words.into_iter());
        assert_eq!(near("max_wate"), Some("max_wait"));
        assert_eq!(near("listn"), Some("listen"));
        assert_eq!(near("colour"), None);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", ""), 3);
        for (swapped, apart) in [
            ("bacd", 1),
            ("abdc", 1),
            ("badc", 2),
            ("cbad", 2),
            ("bcad", 2),
        ] {
            let from_both = (edits("abcd", swapped), edits(swapped, "abcd"));
            assert_eq!(from_both, (apart, apart), "{swapped}");
        }
        assert_eq!(edits("kitten", "ikttne"), 2);
        assert_eq!(near("lisetn"), Some("listen"));
    }

    #[test]
    fn slips_are_told_from_members_of_other_texts() {
        let advice = |name: &str| misspelt(&name.to_ascii_lowercase(), &POLICY);
        for (slip, meant) in [
            ("concurency", "concurrency"),
            ("concurrent", "concurrency"),
            ("onLimit", "on_limit"),
            ("maxPerSecond", "max_per_second"),
            ("Throtle", "throttle"),
            ("preiod", "period"),
            ("limits", "limit"),
            ("limti", "limit"),
            ("ilmit", "limit"),
            ("raet", "rate"),
            ("kye", "key"),
            ("keys", "key"),
        ] {
            let advice = advice(slip).unwrap_or_default();
            assert_eq!(advice, format!("did you mean `{meant}`?"), "{slip}");
        }
        for slip in ["brust", "busrt", "burts"] {
            let advice = misspelt(slip, THROTTLE.fields);
            assert_eq!(advice.as_deref(), Some("did you mean `burst`?"), "{slip}");
        }
        let misplaced = advice("burst");
        assert_eq!(misplaced.as_deref(), Some("it belongs in `throttle`"));
        let others = [
            "name", "note", "state", "type", "tag", "to", "id", "cost", "weight", "scope", "group",
            "mode", "strategy", "max", "queue", "ttl",
        ];
        for other in others {
            assert_eq!(advice(other), None, "{other}");
        }
    }
}
