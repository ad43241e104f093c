//! What a name that is not known may have meant.

use strsim::osa_distance;

use super::words::{POLICY, RATE, THROTTLE};

/// The word nearest to `name`, if it is near enough to have been meant.
pub fn nearest<'w>(name: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let near = words.map(|word| (osa_distance(name, word), word)).min()?;
    (near.0 <= 1 + near.1.chars().count() / 4).then_some(near.1)
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
        length.abs_diff(known.len()) <= most && osa_distance(name, known) <= most
    };
    if let Some(near) = here.iter().find(|known| slip(known)) {
        return Some(format!("did you mean `{near}`?"));
    }
    if THROTTLE.fields.contains(&name) {
        Some("it belongs in `throttle`".to_owned())
    } else if RATE.fields.contains(&name) {
        Some("it belongs in `rate`".to_owned())
    } else {
        let beside = POLICY.concat().contains(&name);
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
        assert_eq!(near("lisetn"), Some("listen"));
    }

    #[test]
    fn slips_are_told_from_members_of_other_texts() {
        let advice = |name: &str| misspelt(&name.to_ascii_lowercase(), &POLICY.concat());
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
