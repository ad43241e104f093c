//! The scripts, which have the limiter's core in front of each.

use redis::{Arg, Cmd};

/// All that the store asks of a server, one script for each.
pub(super) struct Scripts {
    pub(super) take: Script,
    pub(super) back: Script,
    pub(super) end: Script,
    pub(super) due: Script,
    pub(super) set: Script,
    pub(super) look: Script,
    pub(super) number: Script,
    pub(super) join: Script,
    pub(super) reserve: Script,
}

/// A script, and the name under which the server keeps it once it was loaded.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

impl Scripts {
    pub(super) fn new() -> Scripts {
        let script = |text| {
            let text = [include_str!("core.lua"), text].concat();
            let hash = redis::Script::new(&text).get_hash().to_owned();
            Script { text, hash }
        };
        Scripts {
            take: script(include_str!("take.lua")),
            back: script(include_str!("back.lua")),
            end: script(include_str!("end.lua")),
            due: script(include_str!("due.lua")),
            set: script(include_str!("set.lua")),
            look: script(include_str!("look.lua")),
            number: script(include_str!("number.lua")),
            join: script(include_str!("join.lua")),
            reserve: script(include_str!("reserve.lua")),
        }
    }
}

/// The command with the script's text in place of its hash. The server keeps the text from then on. (The script is not
/// loaded in a call of its own: that would ask all nodes of a cluster, also those that are none of ours.)
pub(super) fn with_text(command: &Cmd, script: &Script) -> Cmd {
    let mut whole = redis::cmd("EVAL");
    whole.arg(&script.text);
    for arg in command.args_iter().skip(2) {
        if let Arg::Simple(arg) = arg {
            whole.arg(arg);
        }
    }
    whole
}
