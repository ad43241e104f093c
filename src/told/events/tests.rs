use std::sync::Arc;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::metrics::Metrics;
use ojs_limit::Timestamp;

const NOON: Timestamp = Timestamp(1_770_984_000_100_000);

fn events() -> (Events, Metrics) {
    let metrics = Metrics::new(10);
    (Events::new("s1", metrics.clone()), metrics)
}

fn event<'a>(kind: &'static str, queue: &'a str, job: &'a str) -> NewEvent<'a> {
    let data: &[_] = match kind {
        "rate_limit.exceeded" => &[
            ("key", EventValue::Text("k\"")),
            ("limit", EventValue::Number(5)),
        ],
        _ => &[],
    };
    NewEvent {
        kind,
        subject: job,
        queue: Some(queue),
        job: Some(job),
        job_type: Some("mail.send"),
        scope: None,
        data,
    }
}

fn subscribe(events: &Events, query: &str) -> Subscription {
    events
        .subscribe(Filter::read(Some(query)).unwrap())
        .unwrap()
}

async fn told(subscription: &mut Subscription) -> Arc<EncodedEvent> {
    match subscription.next().await {
        Delivery::Event(told) => told,
        other => panic!("{other:?}"),
    }
}

fn parsed(told: &EncodedEvent) -> serde_json::Value {
    let frame = told.frame.clone();
    serde_json::from_slice(&frames::data(&frame).unwrap()).unwrap()
}

#[track_caller]
fn has(metrics: &Metrics, line: &str) {
    let page = metrics.render();
    assert!(page.contains(line), "{line}: {page}");
}

#[tokio::test]
async fn the_envelope() {
    let (events, metrics) = events();
    let mut one = subscribe(&events, "");
    events.tell(NOON, &event("rate_limit.exceeded", "q", "j1"));
    let told = told(&mut one).await;
    let id = told.id.clone();
    let number = id.strip_prefix("evt_").unwrap();
    assert_eq!(Uuid::parse_str(number).unwrap().get_version_num(), 7);
    assert_eq!(
        parsed(&told),
        json!({
            "specversion": "1.0", "id": id, "type": "rate_limit.exceeded",
            "source": "ojs://ojs-throttle/limiter/s1", "time": "2026-02-13T12:00:00.100Z",
            "subject": "j1", "data": {"key": "k\"", "limit": 5},
            "event": "rate_limit.exceeded", "queue": "q", "job_id": "j1",
        })
    );
    let frame = String::from_utf8(told.frame.to_vec()).unwrap();
    assert!(frame.starts_with(&format!("id: {id}\nevent: rate_limit.exceeded\ndata: {{")));
    assert!(
        frame.ends_with("}\n\n") && frame.lines().count() == 4,
        "{frame}"
    );
    let other = String::from_utf8(told.frame_as("x~y").to_vec()).unwrap();
    assert_eq!(other, frame.replacen(&id, "x~y", 1));
    one.sent();
    has(&metrics, "ojs_throttle_event_subscribers 1");
    has(&metrics, "ojs_throttle_events_sent_total 1");
}

#[tokio::test]
async fn nothing_is_made_when_nobody_listens() {
    let (events, _) = events();
    assert!(!events.heard());
    events.tell(NOON, &event("rate_limit.exceeded", "a", "j1"));
    let mut late = subscribe(&events, "");
    assert!(events.heard());
    events.tell(NOON, &event("rate_limit.released", "a", "j1"));
    assert_eq!(told(&mut late).await.kind, "rate_limit.released");
    drop(late);
    assert!(!events.heard());
}

#[tokio::test]
async fn who_does_not_listen_loses_the_oldest_and_is_told() {
    let (events, metrics) = events();
    let (mut slow, mut quick) = (subscribe(&events, ""), subscribe(&events, ""));
    let count = 10 * MOST_BEHIND;
    for _ in 0..count {
        events.tell(NOON, &event("rate_limit.exceeded", "a", "j"));
        told(&mut quick).await;
    }
    let lost = match slow.next().await {
        Delivery::Lost(lost) => usize::try_from(lost).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        lost,
        count - MOST_BEHIND,
        "no more is kept than the ring has"
    );
    for _ in 0..MOST_BEHIND {
        told(&mut slow).await;
    }
    let counted = |lost: usize| format!("ojs_throttle_events_lost_total {lost}");
    has(&metrics, &counted(lost));
    // One that is cut off before it hears of it lost them all the same; what it might have heard yet is not lost.
    drop((slow, quick));
    let asleep = subscribe(&events, "");
    for _ in 0..MOST_BEHIND {
        events.tell(NOON, &event("rate_limit.exceeded", "a", "j"));
    }
    drop(subscribe(&events, ""));
    let late = subscribe(&events, "");
    for _ in 0..7 {
        events.tell(NOON, &event("rate_limit.exceeded", "a", "j"));
    }
    drop((asleep, late));
    has(&metrics, &counted(lost + 7));
}

#[tokio::test]
async fn there_is_room_for_so_many_and_for_none_at_the_end() {
    let (events, metrics) = events();
    let mut all: Vec<_> = (0..SUBSCRIBERS).map(|_| subscribe(&events, "")).collect();
    assert!(events.subscribe(Filter::default()).is_none());
    all.pop();
    all.push(subscribe(&events, ""));
    events.close();
    all.clear();
    assert!(events.subscribe(Filter::default()).is_none());
    assert!(events.is_closed() && !events.heard());
    has(&metrics, "ojs_throttle_event_subscribers 0");
}
