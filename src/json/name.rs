//! Member names: compared as Go does it, and looked for in a text that was not parsed.

use memchr::memmem;

use super::string::unescape;

/// Letters from the rare to the frequent, as they are in the names and texts of jobs.
const RARE_FIRST: &[u8] = b"zqjxkwvbyghfp_muldcrsnotiae";

/// The characters that Go folds to an ASCII letter.
const KELVIN_SIGN: char = '\u{212A}';
const LONG_S: char = '\u{17F}';

/// A member's name as it is written between its quotes.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    pub(super) inside: &'a [u8],
    /// Whether it has escapes or characters beyond ASCII, so that it may be a shorter name.
    pub(super) disguised: bool,
}

impl Name<'_> {
    /// Whether Go's decoder takes it for its field `name`.
    #[inline]
    pub fn folds_to(self, name: &str) -> bool {
        if self.disguised {
            return self.unfolds_to(name);
        }
        let (written, name) = (self.inside, name.as_bytes());
        // Nearly all that are it are written like it, and the others differ from the first letter on.
        written.len() == name.len() && (written == name || in_other_case(written, name))
    }

    /// The rare case, kept out of the loops over names.
    #[cold]
    fn unfolds_to(self, name: &str) -> bool {
        let text = unescape(self.inside);
        text.is_some_and(|text| text.chars().map(fold).eq(name.chars().map(fold)))
    }

    /// Whether it is exactly `name`.
    pub fn is(self, name: &str) -> bool {
        if self.disguised {
            return unescape(self.inside).is_some_and(|text| text == name);
        }
        self.inside == name.as_bytes()
    }
}

/// The lengths of some names, as bits: most members of an object are none of them already by that.
#[derive(Clone, Copy)]
pub(super) struct Lengths(u64);

impl Lengths {
    #[inline]
    pub(super) fn of(names: &[&str]) -> Lengths {
        let bits = names.iter().map(|name| Lengths::bit(name.len()));
        Lengths(bits.fold(0, |all, bit| all | bit))
    }

    /// Whether a name may fold to one of them; `false` is certain.
    #[inline]
    pub(super) fn may_have(self, name: Name<'_>) -> bool {
        name.disguised || self.0 & Lengths::bit(name.inside.len()) != 0
    }

    /// All that are long are taken for one.
    #[inline]
    fn bit(length: usize) -> u64 {
        1 << length.min(63)
    }
}

/// Whether both are the same but for case.
#[inline]
fn in_other_case(written: &[u8], name: &[u8]) -> bool {
    let firsts = written.first().zip(name.first());
    firsts.is_none_or(|(first, of_name)| first.eq_ignore_ascii_case(of_name))
        && written.eq_ignore_ascii_case(name)
}

fn fold(character: char) -> char {
    match character {
        KELVIN_SIGN => 'k',
        LONG_S => 's',
        other => other.to_ascii_lowercase(),
    }
}

/// Whether a JSON text may have a member that [`get`](super::Json::get) finds under `needle` (of
/// ASCII letters, digits, `_`, `-` and `.`). `false` is certain and spares the parsing; `true`
/// also comes from other uses of the word, and from any `\u` escape, which may hide a letter.
pub fn may_name(text: &[u8], needle: &str) -> bool {
    contains_ignore_case(text, needle)
        || memchr::memchr_iter(b'\\', text).any(|at| text.get(at + 1) == Some(&b'u'))
        || (!text.is_ascii()
            && (may_hide(text, needle, 'k', KELVIN_SIGN) || may_hide(text, needle, 's', LONG_S)))
}

/// Whether `needle` has the `letter` and `text` the other character that Go reads as it.
fn may_hide(text: &[u8], needle: &str, letter: char, other: char) -> bool {
    let concerned = needle.contains([letter, letter.to_ascii_uppercase()]);
    let mut room = [0; 4];
    let hidden = other.encode_utf8(&mut room);
    concerned && memmem::find(text, hidden.as_bytes()).is_some()
}

/// Whether `text` has `needle` in it, without regard to ASCII case.
pub fn contains_ignore_case(text: &[u8], needle: &str) -> bool {
    let needle = needle.as_bytes();
    let Some((at, rarest)) = needle
        .iter()
        .copied()
        .enumerate()
        .min_by_key(|(_, byte)| rank(*byte))
    else {
        return true;
    };
    let (lower, upper) = (rarest.to_ascii_lowercase(), rarest.to_ascii_uppercase());
    memchr::memchr2_iter(lower, upper, text).any(|hit| {
        let window = hit
            .checked_sub(at)
            .and_then(|start| text.get(start..start + needle.len()));
        window.is_some_and(|window| window.eq_ignore_ascii_case(needle))
    })
}

/// How frequent a byte is: what is no letter counts as the most frequent, for a body is full of
/// digits and marks.
fn rank(byte: u8) -> u8 {
    RANKS
        .get(usize::from(byte.to_ascii_lowercase()))
        .copied()
        .unwrap_or(u8::MAX)
}

/// The place of each byte in [`RARE_FIRST`].
#[expect(clippy::indexing_slicing, reason = "when this is compiled")]
const RANKS: [u8; 256] = {
    let mut ranks = [u8::MAX; 256];
    let mut place = 0;
    while place < RARE_FIRST.len() {
        // The list is shorter than 256.
        ranks[RARE_FIRST[place] as usize] = place as u8;
        place += 1;
    }
    ranks
};
