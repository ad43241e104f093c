//! What people do by hand to a key, or to all keys of a policy, over `/throttle/v1/keys/KEY`. Each command says what it
//! did, and the command that undoes it: it sets again what stood before, as far as it was changed.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::commands;
use super::port::{AdminPort, AskError};
use crate::cli::{Clear, LimitArgs, Note, OfKey, PauseArgs};
use crate::duration;
use crate::wire::ojs::{self, shell_word};

/// What can be set: the routes. `limit` has an option of the same name for each.
const SET: [&str; 3] = ["override", "next-start", "bounds"];

/// What an override may say of a key's limits.
const NUMBERS: [&str; 3] = ["concurrency", "rate", "throttle"];

/// A route, and what is put there; `None` takes it away.
type SetByHand = (&'static str, Option<Value>);

/// Lets no job of a key start. `now` is in microseconds since 1970.
///
/// # Errors
/// As [`AdminPort::get`], for this and the others.
pub async fn pause(port: &AdminPort, args: &PauseArgs, now: u64) -> Result<String, AskError> {
    let key = KeyToSet::read(port, &args.of).await?;
    let set = key.beside(noted(json!({"concurrency": 0}), &args.note, now));
    key.change(&[("override", Some(set))], "resume").await
}

/// Takes a pause away. Other numbers that are set stay.
pub async fn resume(port: &AdminPort, of: &OfKey) -> Result<String, AskError> {
    let key = KeyToSet::read(port, of).await?;
    let mut rest = key.before["override"].clone();
    if rest["concurrency"] != 0 {
        let why = "not paused by hand under this very name: `ojs-throttle why` says what keeps its jobs, and what is paused by \
                   `--policy NAME` or `_queue:NAME` is resumed by that";
        return Err(refused(of, why));
    }
    if let Some(set) = rest.as_object_mut() {
        set.remove("concurrency");
    }
    let is_more = NUMBERS.iter().any(|name| !rest[*name].is_null());
    let rest = is_more.then_some(rest);
    key.change(&[("override", rest)], "").await
}

/// Sets limits of a key, or when its next start can be.
pub async fn limit(port: &AdminPort, args: &LimitArgs, now: u64) -> Result<String, AskError> {
    let (slots, rates, spacing) = (args.concurrency, &args.rate, &args.throttle);
    let numbers = json!({"concurrency": slots, "rate": rates, "throttle": spacing});
    let key = KeyToSet::read(port, &args.of).await?;
    let change = match (&args.next_start, &args.set) {
        (Some(at), _) if duration::parse(at).is_err() => ("next-start", json!({"at": at})),
        (Some(after), _) => ("next-start", json!({"after": after})),
        (None, Some(set)) => ("override", ending(set.clone(), &args.note, now)),
        (None, None) => ("override", key.beside(noted(numbers, &args.note, now))),
    };
    let bounds = args.bounds.clone().map(|bounds| ("bounds", bounds));
    let change = bounds.unwrap_or(change);
    if let Some(used) = &args.used {
        // Money is a text.
        let used = used
            .parse::<u32>()
            .map_or_else(|_| json!(used), |used| json!(used));
        return key
            .change(&[("usage", Some(json!({"used": used})))], "")
            .await;
    }
    key.change(&[(change.0, Some(change.1))], "clear").await
}

/// Takes away what was set by hand, or forgets what was counted.
pub async fn clear(port: &AdminPort, args: &Clear) -> Result<String, AskError> {
    let key = KeyToSet::read(port, &args.of).await?;
    if args.usage {
        return key.change(&[("usage", None)], "").await;
    }
    let set = SET.into_iter().filter(|what| !key.before[what].is_null());
    let only = [args.r#override, args.next_start, args.bounds];
    let only = SET.into_iter().zip(only).find(|(_, is_asked)| *is_asked);
    let set = set.filter(|what| only.is_none_or(|(only, _)| *what == only));
    let changes: Vec<SetByHand> = set.map(|what| (what, None)).collect();
    match changes.is_empty() {
        true => Err(refused(&args.of, "nothing is set by hand")),
        false => key.change(&changes, "").await,
    }
}

fn refused(of: &OfKey, why: &str) -> AskError {
    AskError::Refused(StatusCode::NOT_FOUND, format!("{}: {why}", of.name()))
}

/// A key, and what is set by hand for it.
struct KeyToSet<'a> {
    port: &'a AdminPort,
    of: &'a OfKey,
    /// By route, in a form that can be set again.
    before: Value,
}

impl<'a> KeyToSet<'a> {
    async fn read(port: &'a AdminPort, of: &'a OfKey) -> Result<KeyToSet<'a>, AskError> {
        let name = of.name();
        // A key that nothing has yet may be set all the same; a policy that nobody has is a slip.
        let is_new = |status| status == StatusCode::NOT_FOUND && !name.starts_with("_policy:");
        let ask = async |what| match port.get(&path(of, what)).await {
            Err(AskError::Refused(status, _)) if is_new(status) => Ok(Value::Null),
            state => state,
        };
        let (mut state, mut bounded) = (Value::Null, Value::Null);
        let is_tenant = name.starts_with("_tenant:");
        if !is_tenant {
            state = ask("override").await?;
        }
        if is_tenant || name.starts_with("_queue:") {
            bounded = ask("bounds").await?;
        }
        let set = state.get_mut("override").and_then(Value::as_object_mut);
        if let Some(set) = set {
            // These repeat a part of it.
            set.retain(|name, _| name != "limit" && name != "period");
        }
        let before = json!({
            "override": state["override"],
            "next-start": state["shut_until"],
            "bounds": bounded["bounds"],
        });
        Ok(KeyToSet { port, of, before })
    }

    /// Numbers to set, and those that stand and are not set anew: they stay.
    fn beside(&self, mut set: Value) -> Value {
        let pause_stays =
            set["concurrency"].is_null() && self.before["override"]["concurrency"] == 0;
        for name in NUMBERS {
            let stands = &self.before["override"][name];
            if set[name].is_null() && !stands.is_null() {
                set[name] = stands.clone();
            }
        }
        // What stops the key is the pause: who paused it, and why, stays where nobody says why else.
        let before = &self.before["override"];
        if pause_stays && set["reason"].is_null() && !before["reason"].is_null() {
            for name in ["by", "reason"] {
                set[name] = before[name].clone();
            }
        }
        set
    }

    /// What somebody who sets these numbers might not think of.
    fn note(&self, set: &Value, opposite: &str) -> String {
        let before = &self.before["override"];
        let mut said = String::new();
        if opposite == "clear" && before["concurrency"] == 0 && set["concurrency"] == 0 {
            let resume = self.command("resume", &[]);
            let end = set["expires_at"].as_str();
            let end = end.map_or_else(String::new, |end| format!("{end} or "));
            said += &format!("note: it stays paused, until {end}`{resume}`\n");
        }
        for (name, what) in [("by", "it was set by"), ("reason", "the reason was")] {
            let was = &before[name];
            if !was.is_null() && *was != set[name] {
                said += &format!("note: until now {what} {was}\n");
            }
        }
        let slots = &before["concurrency"];
        if set["concurrency"] == 0 && slots.as_u64().is_some_and(|slots| slots > 0) {
            said += &format!(
                "note: concurrency {slots} was set by hand: `resume` does not bring it back, the command below does\n"
            );
        }
        let stays = |name: &&str| !set[*name].is_null() && set[*name] == before[*name];
        let (was, end) = (&before["expires_at"], &set["expires_at"]);
        said += &match end.as_str() {
            None if !was.is_null() => {
                format!("note: what was set before would have ended at {was}: this has no end\n")
            }
            Some(end) if was != end && NUMBERS.iter().any(stays) => {
                format!("note: what was set before ends at {end}, too\n")
            }
            _ => String::new(),
        };
        said
    }

    /// Makes changes one by one; what is printed then. `opposite` undoes the command where nothing stood before.
    async fn change(&self, changes: &[SetByHand], opposite: &str) -> Result<String, AskError> {
        let (mut said, mut answers) = (String::new(), String::new());
        let is_tenant = self.of.name().starts_with("_tenant:");
        if is_tenant && changes.iter().any(|(what, _)| *what != "bounds") {
            let why = "of a tenant only bounds are set: `ojs-throttle limit _tenant:ID --bounds N`";
            return Err(refused(self.of, why));
        }
        // Where the file has lost the policy, nothing can be set for it again.
        let mut is_gone = false;
        for (what, body) in changes {
            let method = body.as_ref().map_or(Method::DELETE, |_| Method::PUT);
            let path = path(self.of, what);
            let answer = self.port.call(method, &path, body.as_ref()).await?;
            let now = body.as_ref().map_or("taken away".into(), Value::to_string);
            said += &format!("{what} of {}: {now}\n", self.of.name());
            if let (&"override", Some(set)) = (what, body) {
                said += &self.note(set, opposite);
            }
            let state: Value = serde_json::from_str(&answer).unwrap_or_default();
            is_gone |= self.of.name().starts_with("_policy:") && state["unit"].is_null();
            if let Some(hint) = state["hint"].as_str() {
                said += &format!("note: {hint}\n");
            }
            answers += &(answer + "\n");
        }
        Ok(match self.of.json {
            true => answers,
            false if is_gone => {
                format!("{said}undo: nothing brings it back: nothing in the file has this name\n")
            }
            false => format!("{said}undo: {}\n", self.undo(changes, opposite)),
        })
    }

    /// The command that undoes `changes`, for a shell.
    fn undo(&self, changes: &[SetByHand], opposite: &str) -> String {
        let is_changed = |what: &str| changes.iter().any(|(changed, _)| *changed == what);
        if is_changed("usage") {
            return "nothing brings back what was counted".into();
        }
        let undoing = SET.into_iter().filter(|what| is_changed(what)).map(|what| {
            let (value, option) = (&self.before[what], format!("--{what}"));
            match value {
                // Without the option `clear` takes away more than was changed.
                Value::Null if opposite == "clear" => self.command(opposite, &[&option]),
                Value::Null => self.command(opposite, &[]),
                Value::String(text) => self.command("limit", &[&option, text]),
                other => self.command("limit", &[&option, &other.to_string()]),
            }
        });
        undoing.collect::<Vec<_>>().join(" && ")
    }

    /// A command about this key, to the same sidecar.
    fn command(&self, word: &str, options: &[&str]) -> String {
        let of = match &self.of.policy {
            Some(policy) => format!("--policy {}", shell_word(policy)),
            None => shell_word(&self.of.name()),
        };
        let mut line = format!("ojs-throttle {word} {of}");
        for word in options {
            line += &format!(" {}", shell_word(word));
        }
        line + &commands::options(&self.of.admin)
    }
}

/// An override of those numbers that there are, with why, until when and by whom.
fn noted(set: Value, note: &Note, now: u64) -> Value {
    let mut set = ending(set, note, now);
    set["reason"] = json!(note.reason);
    set["by"] = json!(note.by);
    if let Some(set) = set.as_object_mut() {
        set.retain(|_, value| *value != Value::Null && *value != "" && *value != json!([]));
    }
    set
}

/// Numbers with their end, if one was asked for.
fn ending(mut set: Value, note: &Note, now: u64) -> Value {
    if let (Some(micros), Some(set)) = (note.lasts, set.as_object_mut()) {
        let end = duration::rfc3339(now.saturating_add(micros));
        set.insert("expires_at".to_owned(), json!(end));
    }
    set
}

fn path(of: &OfKey, what: &str) -> String {
    format!("/throttle/v1/keys/{}/{what}", ojs::encoded(&of.name()))
}
