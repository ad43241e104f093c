//! Commands that are printed, so that they reach the sidecar that was asked when they are pasted.

use std::fmt::Write as _;

use crate::cli::AdminArgs;
use crate::wire::ojs::shell_word;

/// The commands that ask a running sidecar.
const ASKING: [&str; 8] = [
    "clear",
    "limit",
    "pause",
    "resume",
    "slots",
    "subqueues",
    "top",
    "why",
];

/// The options that say which sidecar was asked, each after a space.
pub(super) fn options(admin: &AdminArgs) -> String {
    let config = admin.config.as_ref().map(|path| path.to_string_lossy());
    let there = [
        ("--admin", admin.admin.as_deref()),
        ("--config", config.as_deref()),
    ];
    let mut said = String::new();
    for (option, value) in there {
        if let Some(value) = value {
            // Writing to a String does not fail.
            let _ = write!(said, " {option} {}", shell_word(value));
        }
    }
    said
}

/// A text of the sidecar, with those options in its commands, which stand between backticks.
pub fn addressed(text: &str, admin: &AdminArgs) -> String {
    let options = options(admin);
    let asks = |code: &str| {
        let word = code.strip_prefix("ojs-throttle ").unwrap_or_default();
        ASKING.contains(&word.split(' ').next().unwrap_or_default())
    };
    let mut out = String::with_capacity(text.len());
    for (nth, part) in text.split('`').enumerate() {
        let tick = if nth == 0 { "" } else { "`" };
        let options = if nth % 2 == 1 && asks(part) {
            &*options
        } else {
            ""
        };
        out += tick;
        out += part;
        out += options;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_goes_to_the_sidecar_that_was_asked() {
        let admin = AdminArgs {
            admin: Some("http://h:1".to_owned()),
            config: None,
        };
        let text = "do: `ojs-throttle resume k` ends it; `ojs-throttle doctor` says more";
        assert_eq!(
            addressed(text, &admin),
            "do: `ojs-throttle resume k --admin http://h:1` ends it; `ojs-throttle doctor` says more"
        );
        assert_eq!(addressed(text, &AdminArgs::default()), text);
    }
}
