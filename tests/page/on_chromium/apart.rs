//! Where the jobs of a queue with subqueues lie, on the page of that queue.

use ojs_throttle::backend::Lax;
use ojs_throttle::policy::subqueue::Spread;
use serde_json::json;

use crate::page::browser::Browser;
use crate::page::stage::cell;
use crate::process::http::{ask, fetch};
use crate::sidecar::process::{Backend, Sidecar, config, wait};

const SPLIT: &str = "[[policy]]\nname = \"crm\"\nmatch = { queue = \"q\" }\nkey = \"{meta.tenant_id}\"\n\
    concurrency = 1\n[[queue]]\nname = \"q\"\nsubqueues = true\n";

#[test]
fn a_queue_says_in_how_many_subqueues_its_jobs_lie() {
    let backend = Backend::start(Lax::redis());
    let sidecar = Sidecar::run(&config(backend.addr, "", SPLIT));
    let to = sidecar.data;
    let enqueue = |tenant: &str| {
        let job = json!({"type": "t", "args": [], "meta": {"tenant_id": tenant},
            "options": {"queue": "q", "visibility_timeout_ms": 600_000}});
        assert_eq!(
            ask(to, "POST", "/ojs/v1/jobs", &job.to_string()).status,
            201
        );
    };
    let place = |tenant: &str| Spread::default().flow(tenant, None).subqueue;
    let mut names = (0..).map(|nth| format!("n{nth}"));
    let other = names.find(|name| place(name) == place("evil")).unwrap();
    enqueue("evil");
    wait("its slot is taken", || {
        fetch(to, "q", 1, "w").jobs().len() == 1
    });
    (0..50).for_each(|_| enqueue("evil"));
    enqueue(&other);
    wait("the other one's job is out of reach", || {
        assert!(fetch(to, "q", 1, "w").jobs().is_empty());
        sidecar.metric("ojs_throttle_subqueues_out_of_reach") == 1.0
    });
    let browser = Browser::open();
    browser.go(&format!("http://{}/#queue=q", sidecar.admin));
    let shows = "document.querySelector('#waits').textContent.includes('In 1 subqueue, 1 shared, 1 out of reach.')";
    browser.until(shows);
    browser.go(&format!("http://{}/", sidecar.admin));
    browser.until_is(&cell("queues", "q", "binds"), "out of reach");
}
