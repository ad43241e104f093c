//! Clients that are slow or silent, too many of them, and the orderly end.

use http::Response;
use http::request::Parts;
use hyper::body::Incoming;
use ojs_throttle::answers::body::Body;
use ojs_throttle::answers::load::Urgency;
use ojs_throttle::server::{ListenerBounds, Service};
use tokio::sync::Notify;

use super::prelude::*;

const SHORT: Duration = Duration::from_millis(100);

/// A request that is whole.
const WHOLE: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// The usual bounds, but for what is changed here.
fn bounds(change: impl FnOnce(&mut ListenerBounds)) -> ListenerBounds {
    let mut bounds = ListenerBounds::default();
    change(&mut bounds);
    bounds
}

async fn front(change: impl FnOnce(&mut ListenerBounds)) -> (Backend, Front) {
    let backend = Backend::fine();
    let front = Front::with(&backend, bounds(change), Default::default()).await;
    (backend, front)
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let (_backend, front) = front(|bounds| bounds.header = SHORT).await;
    assert!(front.client().await.is_closed().await);
}

#[tokio::test]
async fn half_a_head_is_not_waited_for() {
    let (backend, front) = front(|bounds| bounds.header = SHORT).await;
    let mut client = front.client().await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
    assert!(client.is_closed().await);
    assert!(backend.seen().is_empty());
}

#[tokio::test]
async fn a_head_in_drips_is_not_waited_for() {
    let (_backend, front) = front(|bounds| bounds.header = SHORT).await;
    let mut client = front.client().await;
    // A second request, so that it is not the first head's time that ends it.
    client.send(WHOLE).await;
    assert_eq!(client.reply().await.status, 200);
    let dripped = async {
        let drip = b"GET / HTTP/1.1\r\nX: "
            .iter()
            .copied()
            .chain(std::iter::repeat(b'x'));
        for byte in drip {
            if tokio::io::AsyncWriteExt::write_u8(&mut client.0, byte)
                .await
                .is_err()
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, dripped)
        .await
        .expect("the drip was never cut");
}

#[tokio::test]
async fn an_idle_connection_lives_its_time_and_no_longer() {
    let idle = Duration::from_secs(1);
    let (_backend, front) = front(|bounds| {
        bounds.header = SHORT;
        bounds.idle = idle;
    })
    .await;
    let mut client = front.client().await;
    let mut since = tokio::time::Instant::now();
    for _ in 0..2 {
        client.send(WHOLE).await;
        assert_eq!(client.reply().await.status, 200);
        since = tokio::time::Instant::now();
        tokio::time::sleep(SHORT * 2).await;
    }
    assert!(client.is_closed().await);
    // The bound of a head is shorter.
    assert!(
        since.elapsed() >= SHORT * 3,
        "closed after {:?}",
        since.elapsed()
    );
}

#[tokio::test]
async fn a_body_in_drips_is_408_where_we_read_it() {
    let (_backend, front) = front(|_| ()).await;
    let mut client = front.client().await;
    client
        .send("POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n")
        .await;
    for _ in 0..10 {
        client.send("x").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reply = client.reply().await;
    reply.refuses(408, "request_timeout", "");
}

#[tokio::test]
async fn a_body_that_stalls_on_its_way_through_is_408() {
    let backend = Backend::fine();
    let way = ojs_throttle::wire::upstream::CallBounds {
        body: SHORT,
        ..Default::default()
    };
    let front = Front::with(&backend, ListenerBounds::default(), way).await;
    let mut client = front.client().await;
    client
        .send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nx")
        .await;
    let begun = tokio::time::Instant::now();
    assert_eq!(client.reply().await.status, 408);
    assert!(begun.elapsed() < way.head / 2, "{:?}", begun.elapsed());
    assert!(backend.seen().is_empty());
}

/// The patience with a client that sends nothing is not that with a backend that has the whole body.
#[tokio::test]
async fn a_backend_that_thinks_has_more_time_than_a_client_that_stalls() {
    let thinks = Backend::run(|connection| {
        while connection.request().is_some() {
            std::thread::sleep(SHORT * 6);
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        }
    });
    let way = ojs_throttle::wire::upstream::CallBounds {
        body: SHORT,
        ..Default::default()
    };
    let front = Front::with(&thinks, ListenerBounds::default(), way).await;
    let sent = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(front.ask(sent).await.text(), "hi");
}

/// While more of it comes it may take longer than a silence may.
#[tokio::test]
async fn a_body_in_drips_passes_on_its_way_through() {
    let backend = Backend::fine();
    let way = ojs_throttle::wire::upstream::CallBounds {
        head: SHORT,
        body: SHORT,
        ..Default::default()
    };
    let front = Front::with(&backend, ListenerBounds::default(), way).await;
    let mut client = front.client().await;
    client
        .send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\n\r\n")
        .await;
    let begun = tokio::time::Instant::now();
    for _ in 0..30 {
        client.send("x").await;
        tokio::time::sleep(SHORT / 10).await;
    }
    assert!(begun.elapsed() > 2 * SHORT);
    assert_eq!(client.reply().await.status, 200);
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_dropped() {
    let backend = Backend::run(|connection| {
        connection.request();
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
        let chunk = vec![0; 1 << 20];
        while std::io::Write::write_all(&mut connection.stream, &chunk).is_ok() {}
        // The proxy let go of us: tell it by way of a second connection's request.
        connection.note("let go");
    });
    let front = Front::with(
        &backend,
        bounds(|bounds| bounds.write = SHORT),
        Default::default(),
    )
    .await;
    let mut client = front.client().await;
    client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let dropped = async {
        while !backend.seen().iter().any(|seen| seen == "let go") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, dropped)
        .await
        .expect("the backend's connection is still held");
}

/// Answers when told to.
struct Gated(Arc<Notify>, Arc<Notify>);

impl Service for Gated {
    async fn call(&self, head: Box<Parts>, _: Incoming) -> Response<Body> {
        assert_ne!(head.uri.path(), "/panic");
        self.0.notify_one();
        self.1.notified().await;
        Response::new(Body::empty())
    }
}

#[tokio::test]
async fn too_many_at_once_are_told_to_come_back() {
    let (came, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = Gated(Arc::clone(&came), Arc::clone(&go));
    let front = Front::serving(service, bounds(|bounds| bounds.in_flight = 1)).await;
    let mut first = front.client().await;
    first.send(WHOLE).await;
    came.notified().await;
    let shed = front
        .ask("GET / HTTP/1.1\r\nHost: a\r\nX-Request-ID: me\r\n\r\n")
        .await;
    shed.refuses(503, "overloaded", "");
    assert_eq!(
        (shed.header("retry-after"), shed.header("x-request-id")),
        (Some("1"), Some("me"))
    );
    go.notify_one();
    assert_eq!(first.reply().await.status, 200);
    let mut again = front.client().await;
    again.send(WHOLE).await;
    go.notify_one();
    assert_eq!(again.reply().await.status, 200);
}

/// Those that POST are urgent, and some are left behind.
struct Sorting(Gated, usize);

impl Service for Sorting {
    async fn call(&self, head: Box<Parts>, body: Incoming) -> Response<Body> {
        self.0.call(head, body).await
    }

    fn urgency(&self, head: &Parts) -> Urgency {
        match head.method == http::Method::POST {
            true => Urgency::Urgent,
            false => Urgency::Ordinary,
        }
    }

    fn left_behind(&self, urgency: Urgency) -> usize {
        match urgency {
            Urgency::Urgent => 0,
            Urgency::Ordinary => self.1,
        }
    }
}

#[tokio::test]
async fn the_urgent_have_places_of_their_own_and_what_is_left_behind_keeps_its_own() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let (came, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = Sorting(Gated(Arc::clone(&came), Arc::clone(&go)), 2);
    let limits = bounds(|bounds| bounds.in_flight = 3);
    let front = Front::serving(service, limits).await;
    let mut running = Vec::new();
    for (request, places) in [(GET, 1), (POST, 3)] {
        for _ in 0..places {
            let mut client = front.client().await;
            client.send(request).await;
            came.notified().await;
            running.push(client);
        }
        let shed = front.ask(request).await;
        shed.refuses(503, "overloaded", "");
    }
    for mut client in running {
        go.notify_waiters();
        assert_eq!(client.reply().await.status, 200);
    }
}

#[tokio::test]
async fn a_panic_is_a_500() {
    let front = Front::serving(
        Gated(Arc::default(), Arc::default()),
        ListenerBounds::default(),
    )
    .await;
    let reply = front.ask("GET /panic HTTP/1.1\r\nHost: a\r\n\r\n").await;
    reply.refuses(500, "internal_error", "");
}

#[tokio::test]
async fn connections_over_the_cap_wait_for_a_place() {
    let (_backend, front) = front(|bounds| bounds.connections = 1).await;
    let mut first = front.client().await;
    first.send(WHOLE).await;
    assert_eq!(first.reply().await.status, 200);
    let mut second = front.client().await;
    second.send(WHOLE).await;
    assert!(
        tokio::time::timeout(SHORT, second.0.readable())
            .await
            .is_err()
    );
    drop(first);
    assert_eq!(second.reply().await.status, 200);
}

#[tokio::test]
async fn draining_closes_the_idle_and_finishes_the_rest() {
    let (came, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = Gated(Arc::clone(&came), Arc::clone(&go));
    let mut front = Front::serving(service, ListenerBounds::default()).await;
    let (mut idle, mut running) = (front.client().await, front.client().await);
    idle.send(WHOLE).await;
    go.notify_one();
    assert_eq!(idle.reply().await.status, 200);
    came.notified().await;
    running.send(WHOLE).await;
    came.notified().await;

    front.drain.cancel();
    assert!(idle.is_closed().await);
    // It was told: what crossed that on its way breaks nothing.
    for _ in 0..3 {
        idle.send(WHOLE).await;
        tokio::task::yield_now().await;
    }
    assert!(idle.is_closed().await);
    assert!(!front.task.is_finished());
    go.notify_one();
    let reply = running.reply().await;
    assert_eq!(
        (reply.status, reply.header("connection")),
        (200, Some("close"))
    );
    drop(running);
    tokio::time::timeout(LONG, &mut front.task)
        .await
        .expect("serve does not end")
        .unwrap();
    assert!(tokio::net::TcpStream::connect(front.addr).await.is_err());
}
