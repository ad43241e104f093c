//! Calls to a service that speaks TLS.

use ojs_throttle::net::Net;

use super::prelude::*;
use crate::servers::certs::Ca;
use crate::sidecar::simulated::Start;

#[tokio::test]
async fn calls_go_out_over_tls_to_whom_the_roots_trust() {
    let ca = Ca::new();
    let vendor = Vendor::secured(&ca.server("vendor"), |_| Answer::ok());
    let upstream = format!("https://localhost:{}", vendor.addr.port());
    for (trust, status) in [
        (String::new(), 502),
        (format!("ca_file = {:?}", ca.file()), 200),
    ] {
        let entry = format!(
            "[[egress]]\nname = 'out'\nlisten = '127.0.0.1:0'\nupstream = '{upstream}'\n{trust}\n"
        );
        let start = Start::before(&Net::Tcp, "http://127.0.0.1:9", &entry);
        let sidecar = start.start().await;
        let reply = sidecar.caller().get("/v1/charges").await;
        assert_eq!(reply.status, status, "{reply:?}");
        if status == 502 {
            let said = String::from_utf8_lossy(&reply.body);
            assert!(said.contains("egress.ca_file"), "{said}");
            assert!(vendor.calls().is_empty());
        }
    }
    let call = vendor.calls().remove(0);
    assert_eq!(call.target(), "/v1/charges");
    assert_eq!(call.header("host"), upstream.strip_prefix("https://"));
}
