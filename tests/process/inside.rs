//! What the chapter `deploy` runs inside a container is answered by the sidecar that runs there.

use super::prelude::*;
use crate::docs::blocks;
use crate::servers::certs::Ca;
use crate::ship::files::example;

/// Where the file is in a container.
const FILE: &str = "/etc/ojs-throttle/throttle.toml";

/// The config of the Kubernetes example.
fn shipped() -> String {
    let (_, config) = example("kubernetes")
        .split_once("throttle.toml: |\n")
        .unwrap();
    let (config, _) = config.split_once("\n---").unwrap();
    config.replace("\n    ", "\n").trim_start().to_owned()
}

#[test]
fn a_container_answers_the_commands_of_the_chapter() {
    let backend = Backend::start(Lax::spec());
    let admin = crate::servers::port::own();
    let ca = Ca::new();
    let shown = ca.server("sidecar");
    let config = shipped()
        .replace(
            "/etc/ojs-throttle-tls/tls.crt",
            shown.cert.to_str().unwrap(),
        )
        .replace("/etc/ojs-throttle-tls/tls.key", shown.key.to_str().unwrap())
        .replace(
            "http://ojs-backend:9090",
            &format!("http://{}", backend.addr),
        )
        .replace("0.0.0.0:9091", &format!("0.0.0.0:{}", admin.port()));
    let (dir, mut command) = run_with(&config);
    let path = dir.path().join("throttle.toml");
    // The environment of the container.
    let secrets = [("REDIS_URL", "memory:"), ("CONTROL_TOKEN", "change-me")];
    command.args(["--listen", "127.0.0.1:0"]).envs(secrets);
    let _sidecar = Sidecar::begin(command, dir);
    let mut asked = 0;
    let commands = blocks::of("src/manual/deploy.md").into_iter();
    for block in commands.filter(|block| block.text.contains(" exec ")) {
        let text = block.text.replace("\\\n", " ");
        for line in text.lines().filter(|line| line.contains(" exec ")) {
            let (_, arguments) = line.rsplit_once(" ojs-throttle ").expect(line);
            let mut inside = program();
            inside.envs(secrets);
            inside.args(arguments.replace(FILE, path.to_str().unwrap()).split(' '));
            let said = ran(&mut inside);
            assert_eq!(said.status, Some(0), "{line}: {}{}", said.out, said.err);
            asked += 1;
        }
    }
    assert!(asked >= 4, "{asked}");
}
