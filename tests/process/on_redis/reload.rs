//! A config that changes beside the login of its store.

use std::fs;

use crate::process::prelude::*;
use crate::process::reload::{Following, MATCHES, slots};

/// A password that a vault rotates in its file must not keep back what operators change.
#[test]
fn a_password_that_was_rotated_stops_no_other_change() {
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let (dir, path) = file("");
    let secret = path.with_file_name("password");
    fs::write(&secret, "old").unwrap();
    let upstream = backend.addr;
    let with = |slots_now| {
        let store = format!(
            "[store]\nurl = \"{}\"\npassword = \"file:{}\"\n",
            store.url().replace("redis://", "redis://default@"),
            secret.display()
        );
        config(upstream, "", &format!("{}{store}", slots(slots_now)))
    };
    let at = store
        .url()
        .trim_start_matches("redis://")
        .parse::<SocketAddr>()
        .unwrap();
    let mut socket = TcpStream::connect(at).unwrap();
    socket.write_all(b"CONFIG SET requirepass old\r\n").unwrap();
    assert_eq!(socket.read(&mut [0; 5]).unwrap(), 5, "+OK");
    fs::write(&path, with(1)).unwrap();
    let following = Following::run(backend, dir, path.clone());
    fs::write(&secret, "new").unwrap();
    following.sidecar.line("id=password_waits");
    following.replace(with(2));
    following.live("a number beside a rotated password", 2, Instant::now());
    assert_eq!(following.sidecar.metric(MATCHES), 1.0);
}
