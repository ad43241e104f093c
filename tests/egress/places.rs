//! Who finds a place among the calls that wait.

use super::prelude::*;

const SLOW: &str = "throttle = { limit = 1, period = '20s' }\nmax_wait = '10m'";

/// Calls that wait; each answer of ours comes with its body.
type Calls = Vec<tokio::task::JoinHandle<(u16, String)>>;

/// So many of a tenant.
fn calls(caller: &Client, tenant: &str, many: usize) -> Calls {
    let call = |_| {
        let (caller, tenant) = (caller.clone(), tenant.to_owned());
        tokio::spawn(async move {
            let header = [("x-tenant", &*tenant)];
            let reply = caller.send(http::Method::GET, "/", &header, "").await;
            (reply.status, reply.text())
        })
    };
    (0..many).map(call).collect()
}

async fn refused(calls: Calls) -> (usize, usize) {
    let (mut refused, all) = (0, calls.len());
    for call in calls {
        if call.is_finished() {
            let (status, text) = call.await.unwrap();
            let is_told = text.contains("egress.max_waiting");
            assert!(status == 200 || is_told, "{text}");
            refused += usize::from(status == 429);
        }
    }
    (refused, all)
}

#[tokio::test(start_paused = true)]
async fn one_tenants_calls_leave_places_to_others() {
    let keyed = format!("key = 'of:{{header.X-Tenant}}'\n{SLOW}\nmax_waiting = 40");
    let second = format!(
        "listen = '127.0.0.1:0'\n{keyed}\n[[egress]]\nname = 'second'\nlisten = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:9'\n\
         key = 'second'\n{SLOW}\nmax_waiting = 3"
    );
    let world = World::start("", &second, |_| Answer::ok()).await;
    let flood = calls(&world.caller, "flood", 200);
    sleep(millis(100)).await;
    let small = calls(&world.caller, "small", 5);
    sleep(millis(100)).await;
    assert_eq!(refused(small).await, (0, 5));
    // One has started, and three of four places are its.
    assert_eq!(refused(flood).await, (200 - 31, 200));
    // Nor do those who wait elsewhere count.
    let other = Client::new(&world.net, world.pair.sidecar.egress[1]);
    let others = calls(&other, "x", 6);
    sleep(millis(100)).await;
    let ended = others.iter().filter(|call| call.is_finished()).count();
    // The first had its start, and nobody answers it: three wait, two are refused.
    assert_eq!(ended, 3);
}

#[tokio::test(start_paused = true)]
async fn one_of_a_group_finds_a_place_beside_many_groups() {
    let fair =
        format!("key = 'k'\nfair = {{ by = '{{header.X-Tenant}}' }}\n{SLOW}\nmax_waiting = 8");
    let world = World::start("", &fair, |_| Answer::ok()).await;
    // One starts, and eight take all places.
    for nth in 0..9 {
        calls(&world.caller, &format!("t{nth}"), 1);
        sleep(millis(10)).await;
    }
    let flood = calls(&world.caller, "t8", 5);
    sleep(millis(10)).await;
    // A second one of theirs finds a place, and no third one.
    assert_eq!(refused(flood).await, (4, 5));
    let late = [calls(&world.caller, "x", 1), calls(&world.caller, "y", 1)];
    sleep(millis(10)).await;
    let mut ended = late.iter().map(|calls| calls[0].is_finished());
    assert_eq!([ended.next(), ended.next()], [Some(false), Some(true)]);
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_budget_of_their_own_leave_places_to_others() {
    let budget = "\n[[egress.budget]]\nname = 'b'\nkey = 'b:{header.X-Tenant}'\nrate = { limit = 2, period = '5m' }";
    let keyed = format!("key = 'k'\nmax_wait = '10m'\nmax_waiting = 40{budget}");
    let world = World::start("", &keyed, |_| Answer::ok()).await;
    let flood = calls(&world.caller, "flood", 200);
    sleep(millis(100)).await;
    let small = calls(&world.caller, "small", 5);
    sleep(millis(100)).await;
    assert_eq!(refused(small).await, (0, 5));
    // Two have started, and three of four places are its.
    assert_eq!(refused(flood).await, (200 - 32, 200));
}
