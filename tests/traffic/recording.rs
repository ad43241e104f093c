//! What official SDKs and official backends said to each other, as it was recorded on the wire: `recorded/`.
//!
//! A file begins with its heads, each below its number. Each exchange has a line of its own: the backend, the connection,
//! the request's id, the time of the reply, and the numbers of the two heads. The request and the reply follow, each a
//! first line and a body, or `-` for none. `{id}`, `{time}`, `{length}` and `{job}` in a head stand for what belongs to one exchange.

use std::collections::HashMap;
use std::path::Path;

use super::wire::Message;

/// One recorded exchange.
pub struct Exchange {
    /// Which backend it was with: each recording is of an SDK with two at once.
    pub backend: String,
    /// Which of the SDK's connections it went over.
    pub connection: u64,
    /// What the SDK sent.
    pub request: Message,
    /// What the backend answered.
    pub reply: Message,
}

/// The recording of one SDK.
pub fn recorded(name: &str) -> Vec<Exchange> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traffic/recorded");
    let text = std::fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
    let mut parts = text.split("\n\n");
    let heads = parts.next().unwrap().trim_start_matches('[').split("\n[");
    let heads: HashMap<&str, &str> = heads.map(|head| head.split_once("]\n").unwrap()).collect();
    parts.map(|part| exchange(part, &heads)).collect()
}

fn exchange(part: &str, heads: &HashMap<&str, &str>) -> Exchange {
    let lines: Vec<&str> = part.trim_start().splitn(5, '\n').collect();
    let [about, asked, request, answered, reply] = lines[..] else {
        panic!("not five lines: {part}")
    };
    let about: Vec<&str> = about.split(' ').collect();
    let [backend, connection, id, time, asking, answering] = about[..] else {
        panic!("not six words: {about:?}")
    };
    let message = |start: &str, head: &str, body: String| {
        let job = body.split("\"id\":\"").nth(1).unwrap_or_default();
        let filled = heads[head]
            .replace("{id}", id)
            .replace("{time}", time)
            .replace("{length}", &body.len().to_string())
            .replace("{job}", job.split('"').next().unwrap());
        let headers = filled.lines().map(|line| line.split_once(": ").unwrap());
        Message {
            start: start.to_owned(),
            headers: headers.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
            body: body.into_bytes(),
        }
    };
    Exchange {
        backend: backend.to_owned(),
        connection: connection.parse().unwrap(),
        request: message(asked, asking, request.trim_matches('-').to_owned()),
        // The end of the line is the backend's.
        reply: message(answered, answering, format!("{}\n", reply.trim_end())),
    }
}
