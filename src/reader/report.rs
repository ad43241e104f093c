//! The problems of a config file, all of them at once, each shown under its line.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::{Value, json};

use super::sources::{SourceText, Sources};

/// The most problems that are shown: a file with more is no config file.
const SHOWN: usize = 50;

/// How a text is coloured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colours {
    /// For a terminal.
    Terminal,
    /// Not at all.
    None,
}

/// Whether a problem forbids a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemSeverity {
    /// It does.
    Error,
    /// It does not.
    Warning,
}

/// One problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Whether it forbids a start.
    pub severity: ProblemSeverity,
    /// Bytes of all texts; `None` for what is not in it.
    pub span: Option<Range<usize>>,
    /// What is wrong, as a sentence that also reads well by itself.
    pub title: String,
    /// What would be right, shown beside the caret.
    pub hint: String,
}

/// The problems of a config file, in the order of its lines.
#[derive(Clone)]
pub struct Report {
    sources: Sources,
    problems: Vec<Problem>,
    /// The files beside the config file that were read for it.
    pub files: Vec<PathBuf>,
}

impl Report {
    /// A report on these texts; secrets in them are made unreadable, spans stay true.
    pub fn new(sources: &Sources, mut problems: Vec<Problem>) -> Report {
        problems.sort_by_key(|problem| problem.span.as_ref().map_or(0, |span| span.start));
        Report {
            sources: sources.with_text(masked(sources.text())),
            problems,
            files: Vec::new(),
        }
    }

    /// The report on a file that cannot be read at all.
    pub fn unreadable(name: &str, error: &io::Error) -> Report {
        let unreadable = Problem {
            severity: ProblemSeverity::Error,
            span: None,
            title: format!("cannot read {name}: {error}"),
            hint: "give the path of a TOML file; config.example.toml shows every field".to_owned(),
        };
        Report::new(&Sources::default(), vec![unreadable])
    }

    /// Adds what may not be meant, and stands in no line.
    pub fn warn(&mut self, title: String, hint: &str) {
        self.problems.push(Problem {
            severity: ProblemSeverity::Warning,
            span: None,
            title,
            hint: hint.to_owned(),
        });
    }

    /// How many problems forbid a start.
    pub fn errors(&self) -> usize {
        self.problems.len() - self.warnings()
    }

    /// How many problems do not.
    pub fn warnings(&self) -> usize {
        let is_warning = |problem: &&Problem| problem.severity == ProblemSeverity::Warning;
        self.problems.iter().filter(is_warning).count()
    }

    /// The report as text, one block a problem.
    pub fn render(&self, colours: Colours) -> String {
        let renderer = match colours {
            Colours::Terminal => Renderer::styled(),
            Colours::None => Renderer::plain(),
        };
        let shown = self.problems.iter().take(SHOWN);
        let mut blocks: Vec<String> = shown
            .map(|problem| self.block(problem, &renderer))
            .collect();
        if self.problems.len() > SHOWN {
            blocks.push(format!("and {} more", self.problems.len() - SHOWN));
        }
        blocks.join("\n\n")
    }

    /// The problems as JSON objects, those without a place without line and column; both count from 1.
    pub fn problems(&self) -> Vec<Value> {
        let shown = self.problems.iter();
        let shown = shown.map(|problem| {
            let found = self.place(problem);
            let before = found
                .as_ref()
                .and_then(|(source, span)| source.text.get(..span.start));
            let place = before.map(|before| {
                let line = before.rsplit('\n').next().unwrap_or_default();
                (before.matches('\n').count() + 1, line.chars().count() + 1)
            });
            json!({
                "severity": match problem.severity {
                    ProblemSeverity::Error => "error",
                    ProblemSeverity::Warning => "warning",
                },
                "file": found.as_ref().map(|(source, _)| source.name),
                "line": place.map(|(line, _)| line),
                "column": place.map(|(_, column)| column),
                "message": problem.title,
                "hint": problem.hint,
            })
        });
        shown.collect()
    }

    /// In which text a problem is, and where in it.
    fn place(&self, problem: &Problem) -> Option<(SourceText<'_>, Range<usize>)> {
        let span = problem.span.as_ref()?;
        let source = self.sources.at(span.start)?;
        Some((source, clamped(&source.span(span), source.text)))
    }

    fn block(&self, problem: &Problem, renderer: &Renderer) -> String {
        let level = match problem.severity {
            ProblemSeverity::Error => Level::ERROR,
            ProblemSeverity::Warning => Level::WARNING,
        };
        let title = level.primary_title(&problem.title);
        let found = self.place(problem);
        let group = match found.filter(|(source, _)| !source.text.is_empty()) {
            Some((source, span)) => {
                let mut caret = AnnotationKind::Primary.span(span);
                if !problem.hint.is_empty() {
                    caret = caret.label(&problem.hint);
                }
                title.element(
                    Snippet::source(source.text)
                        .path(source.name)
                        .annotation(caret),
                )
            }
            None if problem.hint.is_empty() => Group::with_title(title),
            None => title.element(Level::HELP.message(&problem.hint)),
        };
        renderer.render(&[group])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Colours::None))
    }
}

/// Shows the titles only: the text of the file stays out of logs.
impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.problems.iter().map(|problem| &problem.title))
            .finish()
    }
}

impl std::error::Error for Report {}

/// Cuts a span to the text and to one line, and makes it one character long at least.
fn clamped(span: &Range<usize>, text: &str) -> Range<usize> {
    let start = (0..=span.start.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let rest = text.get(start..).unwrap_or_default();
    let line = rest.find('\n').unwrap_or(rest.len());
    let first = rest.chars().next().map_or(0, char::len_utf8);
    let length = span.end.saturating_sub(start);
    let length = length.min(line).max(first.min(line));
    let end = (start + length..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    start..end
}

/// Names that somebody may give to a field of a secret: it is no field of ours, and stands in the error all the same.
const SECRET_NAMES: [&str; 8] = [
    "pass", "pwd", "auth", "cred", "bearer", "login", "apikey", "api_key",
];

/// Replaces secrets by `*`, byte for byte so that spans stay true: everything after a name such as `token`,
/// a store's `url` after its scheme, and the login of any URL.
pub fn masked(text: &str) -> String {
    text.split_inclusive('\n').map(masked_line).collect()
}

fn masked_line(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let after = |from: usize, what: &str| Some(from + lower.get(from..)?.find(what)? + what.len());
    // A store's URL may have a sentinel's password in its query.
    let named = ["tok", "secret", "passw", "sentinel", "salt"].iter();
    let named = named.filter_map(|word| lower.find(word)).min();
    // What models count are tokens too.
    let is_cost = lower.trim_start().starts_with("cost");
    let named = named.filter(|_| !is_cost).and_then(|at| after(at, "="));
    let named = [named, value_of_secret(&lower)].into_iter().flatten().min();
    let url = value_of_url(&lower).map(|at| after(at, ":").unwrap_or(at));
    let from = [named, url].into_iter().flatten().min();
    // A text that is no URL may have been meant as one: `redis:user:password@host`.
    let login = after(0, "://").or_else(|| after(after(0, "=")?, ":"));
    let login = login.and_then(|at| Some(at..at + lower.get(at..)?.rfind('@')?));
    let hidden = |at: usize| {
        from.is_some_and(|from| at >= from) || login.as_ref().is_some_and(|l| l.contains(&at))
    };
    let mut out = String::with_capacity(line.len());
    for (at, c) in line.char_indices() {
        match c {
            ' ' | '"' | '\'' | '\r' | '\n' => out.push(c),
            _ if hidden(at) => out.extend(std::iter::repeat_n('*', c.len_utf8())),
            _ => out.push(c),
        }
    }
    out
}

/// Where the value of a field begins whose name is that of a secret, in a line that has one.
fn value_of_secret(line: &str) -> Option<usize> {
    let mut fields = line.match_indices('=').filter_map(|(at, _)| {
        let name = line.get(..at)?.trim_end_matches([' ', '\t', '"', '\'']);
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let begin = name.trim_end_matches(is_part).len();
        let name = name.get(begin..)?;
        SECRET_NAMES
            .iter()
            .any(|word| name.contains(word))
            .then_some(at + 1)
    });
    fields.next()
}

/// Where the value of a field `url` begins, in a line that has one.
fn value_of_url(line: &str) -> Option<usize> {
    let mut fields = line.match_indices("url").filter_map(|(at, name)| {
        let before = line.get(..at)?;
        let is_part = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        // That of the environment is `…_STORE_URL`.
        let whole = !is_part || before.ends_with("store_");
        let rest = line.get(at + name.len()..)?;
        let value = rest
            .trim_start_matches(['"', '\'', ' ', '\t'])
            .strip_prefix('=')?;
        whole.then_some(line.len() - value.len())
    });
    fields.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_spans_stay() {
        let text = "a = 1\ntokn = \"s3cret-é\" # x\nupstream = \"http://me:pw@host:1\"\n";
        let masked = masked(text);
        assert_eq!(masked.len(), text.len());
        assert!(
            !masked.contains("s3cret") && !masked.contains("pw"),
            "{masked}"
        );
        assert!(
            masked.contains("a = 1") && masked.contains("@host:1"),
            "{masked}"
        );
    }

    #[test]
    fn whatever_a_url_says_its_password_is_hidden() {
        for line in [
            r#"url = "redis+sentinel://a,b/m?sentinel=ops:hunter2""#,
            r#"store = { url = "redis:user:hunter2@host", timeout = "1" }"#,
            r#"store."url"="redis://user:hunter2""#,
            "url = 'hunter2'",
            r#"uri = "redis:user:hunter2@host""#,
            r#"uri = "redis+sentinel://a/m?db=1&sentinel=ops:hunter2""#,
            r#"upstream = "http:user:hunter2@host""#,
            r#"pass = "hunter2""#,
            r#"auth = "Bearer hunter2""#,
            r#"upstream = { "x-api_key" = "hunter2" }"#,
            r#"db_pwd='hunter2'"#,
        ] {
            let masked = masked(line);
            assert!(!masked.contains("hunter2"), "{masked}");
            assert_eq!(masked.len(), line.len());
        }
        for line in [
            "name = \"curl\" # = 1",
            "key = \"url:{queue}\"",
            "url",
            "match = { type = \"auth.login\" }",
        ] {
            assert_eq!(masked(line), line);
        }
        assert!(masked("url = \"postgress://a/b\"").starts_with("url = \"postgress:**"));
    }

    #[test]
    fn any_span_can_be_shown() {
        let text = "é = 1\n";
        for start in 0..10 {
            for end in 0..10 {
                let problem = Problem {
                    severity: ProblemSeverity::Error,
                    span: Some(start..end),
                    title: "t".into(),
                    hint: "h".into(),
                };
                assert!(
                    Report::new(&Sources::file("f", text), vec![problem])
                        .to_string()
                        .starts_with("error: t")
                );
            }
        }
        let problem = Problem {
            severity: ProblemSeverity::Warning,
            span: Some(0..9),
            title: "t".into(),
            hint: String::new(),
        };
        assert_eq!(
            Report::new(&Sources::file("f", ""), vec![problem]).to_string(),
            "warning: t"
        );
    }
}
