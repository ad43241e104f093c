//! What stores that are elsewhere have in common, however they are asked: a Redis, or a database.

use super::{Change, Claimed, Place, Row, Wake, record};

/// What is to be put back of these rows: what adopts those that are out, and the jobs of those that are held,
/// which are asked for without starting any.
pub(super) fn to_put_back(rows: &[Row]) -> (Vec<Change>, Vec<&Claimed>) {
    let (held, out): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.place == Place::Held);
    let adopt = |row: &Row| Change::Adopt {
        claimed: row.claimed.clone(),
        until: row.until,
    };
    let out = out.into_iter().map(adopt).collect();
    let held = held.into_iter().map(|row| &row.claimed).collect();
    (out, held)
}

/// What a sibling says.
pub(super) enum News {
    /// Something for whoever waits for it.
    Wake(Wake),
    /// It has come, or come back.
    Joined,
    /// Something was set over HTTP, or taken away.
    Over,
    /// In a word that is not known here.
    Other,
}

/// The first line of a message is what it says, the others are about what. `None`: those are not understood.
pub(super) fn heard(message: &str) -> Option<News> {
    let (what, about) = message.split_once('\n').unwrap_or((message, ""));
    Some(News::Wake(match what {
        "freed" => Wake::Freed(about.split('\n').filter_map(record::of_name).collect()),
        "row" => Wake::Row { job: about.into() },
        "offered" => {
            let (scope, queue) = record::read_lane(about)?;
            Wake::Offered { scope, queue }
        }
        "paused" => {
            let (paused, queue) = about.split_once('\n')?;
            Wake::Paused {
                queue: queue.into(),
                paused: paused == "1",
            }
        }
        "joined" => return Some(News::Joined),
        "over" => return Some(News::Over),
        _ => return Some(News::Other),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_word_and_what_it_is_about() {
        let job = |job: &str| Wake::Row { job: job.into() };
        assert!(matches!(heard("row\na\nb"), Some(News::Wake(wake)) if wake == job("a\nb")));
        let paused = Wake::Paused {
            queue: "mail".into(),
            paused: true,
        };
        assert!(matches!(heard("paused\n1\nmail"), Some(News::Wake(wake)) if wake == paused));
        assert!(matches!(
            heard("offered\n7:mail"),
            Some(News::Wake(Wake::Offered { scope: 7, .. }))
        ));
        assert!(heard("offered\nmail").is_none(), "of which scope?");
        assert!(matches!(heard("joined"), Some(News::Joined)));
        assert!(matches!(heard("all"), Some(News::Other)));
    }
}
