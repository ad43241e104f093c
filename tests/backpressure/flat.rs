//! Jobs that say a queue beside their `options`, as some SDKs send all of theirs: backends file them elsewhere and
//! show that name ever after. They count where they are.

use super::prelude::*;

/// Into the default queue, and shown in another.
fn flat(options: Value) -> Value {
    json!({"type": "t", "args": [], "queue": "mail", "meta": {"tenant_id": "acme"}, "options": options})
}

async fn offer(client: &Client, job: &Value) -> u16 {
    client.post("/ojs/v1/jobs", job.to_string()).await.status
}

const OTHERS: [fn() -> Lax; 4] = [Lax::redis, Lax::postgres, Lax::lite, Lax::amqp];

/// Whatever name it shows: for each key, and for each tenant, alone and in a batch.
#[tokio::test(start_paused = true)]
async fn they_count_for_their_key_and_their_tenant() {
    let per_key = "[[queue]]\nname = \"default\"\n\
        per_key = { by = \"{meta.tenant_id}\", max_depth = 2 }\n";
    let tenant = "[[tenant]]\nid = \"acme\"\nlimits = { max_queue_depth = 2 }\n";
    let ignoring = "[job_policies]\naccept = \"ignore\"\n";
    let mut plain = flat(json!({}));
    plain.as_object_mut().unwrap().remove("options");
    let mut forged = flat(json!({}));
    forged["meta"]["ojs.rate_limit.mirror"] = json!({"queue": "mail"});
    for config in [per_key, tenant, &format!("{per_key}{ignoring}")] {
        for job in [&plain, &flat(json!({"queue": "default"})), &forged] {
            let (pair, client) = simulated(Lax::redis(), config).await;
            assert_eq!(offer(&client, job).await, 201);
            let batch = json!({"jobs": [job]}).to_string();
            assert_eq!(client.post("/ojs/v1/jobs/batch", batch).await.status, 201);
            assert_eq!(offer(&client, job).await, 429, "{config}{job}");
            let out = client.fetch("default", 1).await;
            assert_eq!(out[0]["queue"], "mail", "it passes as it is");
            assert_eq!(out[0]["meta"], json!({"tenant_id": "acme"}));
            assert_eq!(offer(&client, job).await, 201, "{config}{job}");
            assert_eq!(offer(&client, job).await, 429, "{config}{job}");
            pair.stop().await;
        }
    }
}

/// Those that wait for a time, or to be tried again, where the backend does not tell of them.
#[tokio::test(start_paused = true)]
async fn they_count_while_they_wait_for_a_time() {
    let config = "[[queue]]\nname = \"default\"\nmax_depth = 2\n";
    for lax in OTHERS {
        let name = lax().name;
        let (pair, client) = simulated(lax(), config).await;
        let later = flat(json!({"delay_until": "+PT60S"}));
        let reply = client.post("/ojs/v1/jobs", later.to_string()).await;
        let first = reply.json()["job"]["id"].as_str().unwrap().to_owned();
        assert_eq!(reply.json()["job"]["queue"], "mail", "{name}");
        assert_eq!(offer(&client, &later).await, 201, "{name}");
        sleep(Duration::from_millis(1_200)).await;
        assert_eq!(offer(&client, &later).await, 429, "{name}");
        // One that is cancelled before its time is gone.
        client.cancel(&first).await;
        let again = json!({"retry": {"max_attempts": 5, "initial_interval": "PT60S"}});
        let again = flat(again);
        assert_eq!(offer(&client, &again).await, 201, "{name}");
        let out = client.fetch("default", 1).await;
        client.nack(id(&out[0]), true).await;
        sleep(Duration::from_millis(1_200)).await;
        // A nack says nothing of its job there.
        let told = name != Lax::lite().name;
        let wanted = match told {
            true => 429,
            false => offer(&client, &again).await,
        };
        assert_eq!(offer(&client, &again).await, wanted, "{name}");
        pair.stop().await;
    }
}

/// What is shown in a bounded queue and is in another takes no room in it.
#[tokio::test(start_paused = true)]
async fn they_do_not_count_where_they_are_not() {
    let config = "[[queue]]\nname = \"mail\"\nmax_depth = 1\n";
    let (_pair, client) = simulated(Lax::redis(), config).await;
    client.fill("mail", 1).await;
    assert_eq!(client.fetch("mail", 1).await.len(), 1);
    let again = flat(json!({"retry": {"max_attempts": 5, "initial_interval": "PT60S"}}));
    let later = flat(json!({"delay_until": "+PT60S"}));
    for job in [&again, &later] {
        assert_eq!(offer(&client, job).await, 201);
    }
    let out = client.fetch("default", 1).await;
    client.nack(id(&out[0]), true).await;
    sleep(Duration::from_millis(1_200)).await;
    let reply = client.offer("mail").await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert_eq!(number(&reply, "x-ojs-queue-pressure"), 1.0);
    full(&client.offer("mail").await, "mail", 1);
}

/// The next one of a full queue goes, whatever it shows.
#[tokio::test(start_paused = true)]
async fn the_next_of_them_goes() {
    let config = "[[queue]]\nname = \"default\"\nmax_depth = 2\nstrategy = \"drop_oldest\"\n";
    let (_pair, client) = simulated(Lax::redis(), config).await;
    let mut ids = Vec::new();
    for priority in [5, 9, 1, 1] {
        let job = flat(json!({"priority": priority}));
        ids.push(client.enqueue(job).await);
    }
    for (nth, state) in [(0, "discarded"), (1, "discarded"), (3, "available")] {
        assert_eq!(client.job(&ids[nth]).await["state"], state, "{nth}");
    }
}
