//! Asks the admin port of a running sidecar, for the commands that look at it.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use serde_json::Value;

use crate::client::JsonClient;
use crate::net::Net;
use crate::ojs;
use crate::upstream::{CallBounds, Target, Upstream};

/// Where the admin port is if nobody says.
pub const DEFAULT: &str = "http://127.0.0.1:9091";
/// The longest that an answer may take; the admin port takes 5 s at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The sidecar refused: wrong token, unknown key.
    #[error("{0}")]
    Refused(String),
    /// The address or the token is none.
    #[error("{0}")]
    Unfit(String),
    /// Nobody answered.
    #[error("{0}")]
    Unreached(String),
}

impl AskError {
    /// The exit status of a command that ends so: 1 refused, 2 not understood, 3 not reached.
    pub fn exit_status(&self) -> u8 {
        match self {
            AskError::Refused(_) => 1,
            AskError::Unfit(_) => 2,
            AskError::Unreached(_) => 3,
        }
    }
}

/// The URL of an admin port that listens on this address, for who is on the same host.
pub fn url_of(listens: SocketAddr) -> String {
    let mut address = listens;
    if address.ip().is_unspecified() {
        address.set_ip(match listens.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{address}")
}

/// The admin port of one sidecar.
#[derive(Debug)]
pub struct AdminPort {
    client: JsonClient,
    url: String,
}

impl AdminPort {
    /// The admin port at this URL; `token` is that of `server.control_token`.
    ///
    /// # Errors
    /// The URL is none, or the token can stand in no header.
    pub fn new(url: &str, token: Option<&str>) -> Result<AdminPort, AskError> {
        let target = Target::parse(url, None).map_err(|why| AskError::Unfit(why.to_string()))?;
        let server = Upstream::new(target, Net::Tcp, CallBounds::default());
        let mut client = JsonClient::new(server, PATIENCE);
        if let Some(token) = token {
            let mut login = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| AskError::Unfit("the control token can stand in no header".into()))?;
            login.set_sensitive(true);
            client = client.authorized(login);
        }
        Ok(AdminPort {
            client,
            url: url.to_owned(),
        })
    }

    /// Gets a page as JSON.
    ///
    /// # Errors
    /// Nobody answers, or the answer is a refusal.
    pub async fn get(&self, path: &str) -> Result<Value, AskError> {
        let answer = self.client.exchange(Method::GET, path, None).await;
        let (status, body) = answer.map_err(|why| {
            AskError::Unreached(format!(
                "no sidecar answers at {} ({why:#}): say where its admin port is by --admin or --config",
                self.url
            ))
        })?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        match status {
            StatusCode::OK => Ok(body),
            _ => Err(AskError::Refused(refusal(status, &body))),
        }
    }
}

/// What a refusal says, with what to do.
fn refusal(status: StatusCode, body: &Value) -> String {
    let error = &body["error"];
    let text = |name: &str| error[name].as_str();
    let said = text("message").map_or_else(|| status.to_string(), str::to_owned);
    match text("hint") {
        Some(hint) => format!("{said}: {hint}"),
        None => said,
    }
}

/// The path of `why` with its question: names and values.
pub fn why_path<'a>(question: impl Iterator<Item = (String, &'a str)>) -> String {
    let pairs =
        question.map(|(name, value)| format!("{}={}", ojs::encoded(&name), ojs::encoded(value)));
    let pairs: Vec<String> = pairs.collect();
    format!("/throttle/v1/why?{}", pairs.join("&"))
}

/// The answer of `why`, for people.
pub fn why_text(answer: &Value) -> String {
    let mut out = String::new();
    let text = |name: &str| answer[name].as_str().unwrap_or_default();
    // Writing to a String does not fail.
    let _ = writeln!(out, "why:   {}", text("why"));
    let _ = writeln!(out, "do:    {}", text("do"));
    if let Some(next) = next_start(answer) {
        let _ = writeln!(out, "next:  {next}");
    }
    if let Some(ahead) = answer["ahead"].as_u64().filter(|ahead| *ahead > 0) {
        let _ = writeln!(out, "ahead: {ahead} held jobs leave before this one");
    }
    for note in answer["notes"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "note:  {}", note.as_str().unwrap_or_default());
    }
    if let Some(queue) = answer["queue"].as_object() {
        let number = |name: &str| queue.get(name).and_then(Value::as_u64);
        let mut line = format!(
            "{} jobs held here, {} by other sidecars",
            number("held_here").unwrap_or(0),
            number("held_by_siblings").unwrap_or(0)
        );
        if let Some(depth) = number("depth") {
            let _ = write!(line, "; depth {depth}");
        }
        if let Some(bound) = number("max_depth") {
            let _ = write!(line, " of at most {bound}");
        }
        let name = queue
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let _ = writeln!(out, "\nqueue {name}: {line}");
        for policy in (queue.get("keys_by_job").and_then(Value::as_array))
            .into_iter()
            .flatten()
        {
            let policy = policy.as_str().unwrap_or_default();
            let _ = writeln!(out, "  each job has a key of its own by policy {policy}");
        }
    }
    for limit in answer["limits"].as_array().into_iter().flatten() {
        limit_text(limit, &mut out);
    }
    out
}

fn next_start(answer: &Value) -> Option<String> {
    let text = |name: &str| answer[name].as_str();
    if let (Some(half), Some(most)) = (text("next_start_p50"), text("next_start_p90")) {
        return Some(format!(
            "a slot is free by {half} in half of all cases, by {most} in nine of ten"
        ));
    }
    let unknown = text("next_start_unknown").map(|reason| format!("nobody can say: {reason}"));
    text("next_start").map(str::to_owned).or(unknown)
}

fn limit_text(limit: &Value, out: &mut String) {
    let state = &limit["state"];
    let (kind, name) = match state["key"].as_str() {
        Some(key) => ("key", key),
        None => ("queue", state["queue"].as_str().unwrap_or_default()),
    };
    let binds = match state["limited_by"].as_str() {
        Some(strategy) => format!("limited by {strategy}"),
        None => "has room".to_owned(),
    };
    let policy = limit["policy"].as_str().unwrap_or_default();
    let _ = writeln!(out, "\n{kind} {name} (policy {policy}): {binds}");
    usage_text(state, out);
    let _ = writeln!(out, "  waiting    {}", state["waiting_count"]);
    for slot in limit["slots"].as_array().into_iter().flatten() {
        slot_text(slot, out);
    }
}

/// What is used of each limit of a key.
fn usage_text(state: &Value, out: &mut String) {
    let slots = &state["concurrency"];
    if slots.is_object() {
        let _ = writeln!(
            out,
            "  slots      {} of {}",
            slots["active"], slots["limit"]
        );
    }
    let windows = (1..=crate::limit::MOST_WINDOWS).map(|nth| match nth {
        1 => "rate".to_owned(),
        nth => format!("rate_{nth}"),
    });
    for window in windows
        .map(|name| &state[name])
        .filter(|window| window.is_object())
    {
        let period = window["period"].as_str().unwrap_or_default();
        let _ = writeln!(
            out,
            "  starts     {} of {} in {period}",
            window["current_count"], window["limit"]
        );
    }
    let throttle = &state["throttle"];
    if throttle.is_object() {
        let text = |name: &str| throttle[name].as_str().unwrap_or_default();
        let _ = writeln!(
            out,
            "  spacing    {} in {}, next at {}",
            throttle["limit"],
            text("period"),
            text("next_allowed_at")
        );
    }
    if let Some(until) = state["shut_until"].as_str() {
        let _ = writeln!(out, "  shut until {until}");
    }
}

/// Who has a slot.
fn slot_text(slot: &Value, out: &mut String) {
    let text = |name: &str, none: &'static str| slot[name].as_str().unwrap_or(none).to_owned();
    let sidecar = match slot["by_sibling"].as_bool() {
        Some(true) => ", through another sidecar",
        _ => "",
    };
    let _ = writeln!(
        out,
        "  job        {} at worker {} since {}{sidecar}",
        text("job", ""),
        text("worker", "unnamed"),
        text("since", "before this sidecar started"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_this_host() {
        for (listens, url) in [
            ("0.0.0.0:9091", "http://127.0.0.1:9091"),
            ("[::]:9091", "http://[::1]:9091"),
            ("10.0.0.1:80", "http://10.0.0.1:80"),
        ] {
            assert_eq!(url_of(listens.parse().unwrap()), url);
        }
    }

    #[test]
    fn questions_are_encoded() {
        let question = [("meta.a".to_owned(), "x &y"), ("type".to_owned(), "t")];
        assert_eq!(
            why_path(question.into_iter()),
            "/throttle/v1/why?meta.a=x%20%26y&type=t"
        );
    }
}
