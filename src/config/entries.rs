//! What entries of several lists have: a name, and what is declared for the time when the store is lost.

use ojs_limit::Key;
use ojs_policy::fields::Fields;
use ojs_reader::{Text, TomlTable};
use ojs_store::guard::OnStoreError;

/// Names that no entry may have: limits of jobs and of queues go by them.
const TAKEN: [&str; 2] = ["job", "queue"];

/// Reads the name of what has limits; the flag says whether it is valid.
pub(super) fn valid_name(table: &mut TomlTable<'_>) -> (Option<Text>, bool) {
    let Some(name) = table.string("name") else {
        return (None, false);
    };
    let taken = TAKEN.contains(&name.text.as_str());
    let valid = Key::new(&name.text).is_ok();
    if taken {
        let title = format!("`{}` {:?} is taken", table.path_of("name"), name.text);
        let hint = "limits that a job or a queue has by itself go by it; give it another";
        table.error(&name.span, title, hint);
    } else if !valid {
        let hint =
            "up to 256 letters, digits and `.` `_` `:` `-`, beginning with a letter or digit";
        let title = format!("`{}` is not valid", table.path_of("name"));
        table.error(&name.span, title, hint);
    }
    (Some(name), valid && !taken)
}

/// Reports a field that is not there; `example` is how it is written.
pub(super) fn must_have(table: &mut TomlTable<'_>, name: &'static str, example: &str) {
    if !table.has(name) {
        Fields::missing(table, name, example);
    }
}

/// Reads what is declared for the time when the store is lost.
pub(super) fn on_store_error(table: &mut TomlTable<'_>) -> Option<OnStoreError> {
    let words = OnStoreError::words().map(|(word, mode)| (word, Some(mode)));
    table.word_or("on_store_error", None, &words)
}
