//! The texts that settings are read from: a file or the files of a folder, and variables of the environment over them.

use std::ops::Range;

/// Texts one after the other, so that one number is a place in any of them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sources {
    text: String,
    parts: Vec<NamedText>,
}

/// One text.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NamedText {
    name: String,
    start: usize,
    kind: SourceKind,
}

/// What a text is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceKind {
    /// A file.
    File,
    /// A variable of the environment: its name and its value, as a shell writes them.
    Variable,
}

/// One text, as a reader sees it.
#[derive(Clone, Copy, Debug)]
pub struct SourceText<'s> {
    /// Of the file, or of the variable.
    pub name: &'s str,
    /// All of it.
    pub text: &'s str,
    /// Where it begins among all.
    pub start: usize,
    /// What it is.
    pub kind: SourceKind,
}

impl Sources {
    /// One file, or what stands for it.
    pub fn file(name: impl Into<String>, text: impl Into<String>) -> Sources {
        Sources {
            text: text.into(),
            parts: vec![NamedText {
                name: name.into(),
                start: 0,
                kind: SourceKind::File,
            }],
        }
    }

    /// One more text behind the others.
    pub fn push(&mut self, kind: SourceKind, name: impl Into<String>, text: &str) {
        if !self.parts.is_empty() {
            self.text.push('\n');
        }
        self.parts.push(NamedText {
            name: name.into(),
            start: self.text.len(),
            kind,
        });
        self.text += text;
    }

    /// All of them, one after the other.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// As these, with something else in the place of each byte, so that places stay true.
    pub fn with_text(&self, text: String) -> Sources {
        Sources {
            text,
            parts: self.parts.clone(),
        }
    }

    /// Each of them, in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = SourceText<'_>> {
        (0..self.parts.len()).filter_map(|nth| self.nth(nth))
    }

    fn nth(&self, nth: usize) -> Option<SourceText<'_>> {
        let part = self.parts.get(nth)?;
        // A line break stands between two.
        let end = self.parts.get(nth + 1).map(|next| next.start - 1);
        let text = self.text.get(part.start..end.unwrap_or(self.text.len()));
        Some(SourceText {
            name: &part.name,
            text: text.unwrap_or_default(),
            start: part.start,
            kind: part.kind,
        })
    }

    /// The text in which this place is.
    pub fn at(&self, place: usize) -> Option<SourceText<'_>> {
        self.nth(
            self.parts
                .partition_point(|part| part.start <= place)
                .checked_sub(1)?,
        )
    }

    /// Where this is, for people: `line 3`, or `a.toml:3` where there are several files.
    pub fn place(&self, at: usize) -> String {
        let files = self.iter().filter(|part| part.kind == SourceKind::File);
        match self.at(at) {
            Some(part) if part.kind == SourceKind::File && files.count() == 1 => {
                format!("line {}", part.line(at))
            }
            Some(part) => part.place(at),
            None => String::new(),
        }
    }
}

impl SourceText<'_> {
    /// Whether it says nothing, as a file that is half written.
    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// In which line of this text a place is, from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.get(..at.saturating_sub(self.start));
        before.unwrap_or(self.text).matches('\n').count() + 1
    }

    /// `a.toml:3`, or the name of the variable.
    pub fn place(&self, at: usize) -> String {
        match self.kind {
            SourceKind::File => format!("{}:{}", self.name, self.line(at)),
            SourceKind::Variable => self.name.to_owned(),
        }
    }

    /// A place among all texts as one in this text.
    pub fn span(&self, span: &Range<usize>) -> Range<usize> {
        span.start.saturating_sub(self.start)..span.end.saturating_sub(self.start)
    }
}
