//! From texts to one document, and what is wrong with it before anybody asks what it says.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

use super::merge::{self, LISTS};
use super::report::{Problem, ProblemSeverity};
use super::sources::{SourceKind, SourceText, Sources};

/// All files as one document, with the environment over them.
#[derive(Debug)]
pub struct Document<'s> {
    /// What they say.
    pub root: Spanned<DeTable<'s>>,
    /// What is not TOML, in those files in which something is not.
    errors: Vec<(SourceText<'s>, Vec<toml::de::Error>)>,
    /// What stands in two files.
    twice: Vec<Problem>,
}

impl<'s> Document<'s> {
    /// Reads them. `variables` are those of the environment, each with the setting in whose place it stands.
    pub fn parse(sources: &'s Sources, variables: &[(&str, &'static str)]) -> Document<'s> {
        let mut root = Spanned::new(0..0, DeTable::new());
        let (mut errors, mut twice) = (Vec::new(), Vec::new());
        for source in sources.iter() {
            if source.kind == SourceKind::Variable {
                let variable = variables.iter().find(|(name, _)| *name == source.name);
                if let Some((_, setting)) = variable {
                    merge::put_over(root.get_mut(), &source, setting);
                }
                continue;
            }
            let (document, wrong) = DeTable::parse_recoverable(source.text);
            if !wrong.is_empty() {
                errors.push((source, wrong));
            }
            if source.start == 0 {
                root = document;
                continue;
            }
            let more = merge::moved(document.into_inner(), source.start);
            merge::join(root.get_mut(), more, "", sources, &mut twice);
        }
        Document {
            root,
            errors,
            twice,
        }
    }

    /// How many files have something in them that is not TOML.
    pub fn broken(&self) -> usize {
        self.errors.len()
    }

    /// Adds what is wrong with the document itself to the problems with what it says.
    pub fn add_problems(self, sources: &Sources, problems: &mut Vec<Problem>) {
        for (source, errors) in &self.errors {
            syntax(sources, source, errors, problems);
        }
        problems.extend(self.twice);
    }
}

/// How the parser begins where an array or an inline table does not end: what follows is one more value to it.
const OPEN: &str = "missing comma";

/// Adds what is not TOML, once a line: the rest of such a line says nothing any more, and neither does
/// what was read from it.
fn syntax(
    all: &Sources,
    source: &SourceText<'_>,
    errors: &[toml::de::Error],
    problems: &mut Vec<Problem>,
) {
    let breaks: Vec<usize> = all.text().match_indices('\n').map(|(at, _)| at).collect();
    let line = |at: usize| breaks.partition_point(|end| *end < at);
    let mut broken: BTreeMap<usize, Problem> = BTreeMap::new();
    for error in errors {
        let own = error.span().unwrap_or_default();
        let span = own.start + source.start..own.end + source.start;
        broken.entry(line(span.start)).or_insert_with(|| Problem {
            severity: ProblemSeverity::Error,
            title: "not valid TOML".into(),
            hint: meant(source.text, &own)
                .unwrap_or_else(|| error.message().trim().replace('\n', ", ")),
            span: Some(span),
        });
    }
    problems.retain(|problem| {
        let span = problem.span.clone().unwrap_or_default();
        let lines = line(span.start)..=line(span.end);
        broken.range(lines).next().is_none()
    });
    // One bracket too few makes nonsense of all that follows. So does a header that is there twice, and YAML.
    let hints = [OPEN, TWICE, YAML];
    let is_last = |problem: &Problem| hints.iter().any(|hint| problem.hint.starts_with(hint));
    let open = broken.values().position(is_last);
    problems.extend(
        broken
            .into_values()
            .take(open.map_or(usize::MAX, |nth| nth + 1)),
    );
}

/// How the hint begins for a table whose header is there twice.
const TWICE: &str = "this table is there already";
const YAML: &str = "this looks like YAML; TOML has a line [server] and below it upstream = \"…\"";

/// What the line of an error must have been meant as, if that can be told.
fn meant(text: &str, error: &Range<usize>) -> Option<String> {
    let (above, rest) = text.split_at_checked(error.start)?;
    let begin = above.rsplit('\n').next().unwrap_or_default();
    let line = format!("{begin}{}", rest.lines().next().unwrap_or_default());
    let name = text
        .get(error.clone())
        .filter(|_| begin.trim_start() == "[");
    if let Some(name) = name {
        let header = format!("{name}]");
        let is_first = |line: &str| line.trim_start_matches([' ', '[']).starts_with(&header);
        let first = above.lines().position(is_first)? + 1;
        return Some(match LISTS.contains(&name) {
            true => format!("{TWICE}: write [[{name}]], here and in line {first}"),
            false => format!("{TWICE}, in line {first}: put its fields there"),
        });
    }
    if line.contains(['“', '”', '„', '‘', '’']) {
        return Some("write straight quotes: \"…\"".into());
    }
    let (name, _) = line.split_once(':')?;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b" -_".contains(&byte);
    name.bytes().all(is_word).then(|| YAML.to_owned())
}
