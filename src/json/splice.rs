//! Changes of a JSON text that leave every other byte as it is.

use std::cmp::Reverse;
use std::ops::Range;

use super::string::quote;
use super::value::{Json, Kind, Member, members};

/// Replacements in a text, applied in one pass.
#[derive(Default, Debug)]
pub struct Splice {
    edits: Vec<Edit>,
    /// Changes of whole members with the place where their object begins. Which comma goes or
    /// comes depends on all changes of an object, so that is settled when they are applied.
    changes: Vec<(usize, MemberChange)>,
}

type Edit = (Range<usize>, Vec<u8>);

#[derive(Debug)]
enum MemberChange {
    /// Removes the member whose name begins here.
    Remove(usize),
    /// Adds a member: name, colon and value.
    Add(Vec<u8>),
}

impl Splice {
    /// No changes yet.
    pub fn new() -> Splice {
        Splice::default()
    }

    /// Puts `bytes` in place of `range`; an empty range inserts. Ranges must not overlap, except
    /// that what is inside a larger range, or inside a removed member, goes with that.
    /// Insertions at one place keep their order.
    pub fn replace(&mut self, range: Range<usize>, bytes: impl Into<Vec<u8>>) {
        self.edits.push((range, bytes.into()));
    }

    /// Removes an object's member with the comma that belongs to it.
    pub fn remove_member(&mut self, object: Json<'_>, member: Member<'_>) {
        self.changes
            .push((object.start, MemberChange::Remove(member.name.start)));
    }

    /// Adds a member at an object's end: `name` plain, `value` as JSON. Members that have the
    /// name stay; Go's decoder reads the last, which is this one.
    pub fn add_member(&mut self, object: Json<'_>, name: &str, value: &[u8]) {
        let mut member = quote(name).into_bytes();
        member.push(b':');
        member.extend_from_slice(value);
        self.changes.push((object.start, MemberChange::Add(member)));
    }

    /// Sets a member: in the place of the one that has this very name, else at the object's end. `value` is JSON.
    pub fn set(&mut self, object: Json<'_>, name: &str, value: &str) {
        match object.get_exact(name) {
            Some(theirs) => self.replace(theirs.range(), value),
            None => self.add_member(object, name, value.as_bytes()),
        }
    }

    /// Sets members of the object that stands under `name`; it is made where there is none.
    pub fn set_in(&mut self, whole: Json<'_>, name: &str, members: &[(&str, String)]) {
        let inner = whole.get_exact(name);
        if let Some(inner) = inner.filter(|inner| inner.kind() == Kind::Object) {
            (members.iter()).for_each(|(name, value)| self.set(inner, name, value));
            return;
        }
        let each: Vec<String> = (members.iter())
            .map(|(name, value)| format!("{}:{value}", quote(name)))
            .collect();
        self.set(whole, name, &format!("{{{}}}", each.join(",")));
    }

    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.changes.is_empty()
    }

    /// The text with all replacements made; `text` is the one that the values were parsed from.
    pub fn apply(mut self, text: &[u8]) -> Vec<u8> {
        self.changes.sort_by_key(|(object, _)| *object);
        for changes in self.changes.chunk_by(|(one, _), (other, _)| one == other) {
            settle(text, changes, &mut self.edits);
        }
        // At one place insertions come first, in their order (the sort is stable), and then the
        // largest replacement, which takes those inside it along.
        self.edits
            .sort_by_key(|(range, _)| (range.start, !range.is_empty(), Reverse(range.end)));

        let edits = self.edits.iter();
        let added = edits.map(|(_, bytes)| bytes.len()).sum::<usize>();
        let mut result = Vec::with_capacity(text.len() + added);
        let mut done = 0;
        for (range, bytes) in self.edits {
            if range.start < done {
                continue;
            }
            result.extend_from_slice(text.get(done..range.start).unwrap_or_default());
            result.extend_from_slice(&bytes);
            done = range.end;
        }
        result.extend_from_slice(text.get(done..).unwrap_or_default());
        result
    }
}

/// Turns all changes of one object into edits.
fn settle(text: &[u8], changes: &[(usize, MemberChange)], edits: &mut Vec<Edit>) {
    let Some((object, _)) = changes.first() else {
        return;
    };
    let mut removed = Vec::new();
    let mut added = Vec::new();
    for (_, change) in changes {
        match change {
            MemberChange::Remove(name) => removed.push(*name),
            MemberChange::Add(member) => added.push(member),
        }
    }
    removed.sort_unstable();

    // The end of the member before, and whether any before is kept.
    let mut end = object + 1;
    let mut kept = false;
    let mut entries = members(text, *object).peekable();
    while let Some(Member { name, value, .. }) = entries.next() {
        if removed.binary_search(&name.start).is_err() {
            kept = true;
        } else if kept {
            edits.push((end..value.end, Vec::new()));
        } else {
            let next = entries.peek().map_or(value.end, |next| next.name.start);
            edits.push((name.start..next, Vec::new()));
        }
        end = value.end;
    }
    for member in added {
        let comma: &[u8] = if kept { b"," } else { b"" };
        edits.push((end..end, [comma, member].concat()));
        kept = true;
    }
}
