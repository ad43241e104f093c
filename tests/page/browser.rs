//! A headless Chromium of the test's own, led by chromedriver.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::process::http::ask;
use crate::servers::only_on;

/// How WebDriver marks a reference to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// How long anything may take to appear, in milliseconds.
const PATIENCE: u64 = 60_000;
pub const TAB: &str = "\u{e004}";
const CONTROL: &str = "\u{e009}";
const RELEASED: &str = "\u{e000}";
const BACKSPACE: &str = "\u{e003}";
pub const ENTER: &str = "\u{e007}";

/// One window without anything that others left. It ends with this, and so does all that it started.
pub struct Browser {
    driver: Child,
    at: SocketAddr,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens a window of 1280 pixels.
    pub fn open() -> Browser {
        only_on("chromium");
        let profile = tempfile::tempdir().unwrap();
        // Somebody else may have the port that it chose; then it ends, and another one is tried.
        let mut drivers = (0..5).filter_map(|_| driver(profile.path()));
        let (driver, at) = drivers.next().expect("chromedriver does not start");
        let folder = format!(
            "--user-data-dir={}",
            profile.path().join("profile").display()
        );
        let options = json!({"args": [
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
            "--window-size=1280,900", folder,
        ]});
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "timeouts": {"script": PATIENCE + 5_000},
        }}});
        let mut browser = Browser {
            driver,
            at,
            session: String::new(),
            _profile: profile,
        };
        let given = browser.call("POST", "/session", &wanted);
        browser.session = format!("/session/{}", given["sessionId"].as_str().unwrap());
        browser
    }

    /// One command. It fails where the browser refuses it, as while a dialog is open.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = match method {
            "POST" => body.to_string(),
            _ => String::new(),
        };
        let reply = ask(self.at, method, &format!("{}{path}", self.session), &body);
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.body);
        reply.json()["value"].take()
    }

    /// A command of Chromium's own protocol.
    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.call("POST", "/goog/cdp/execute", &body)
    }

    pub fn go(&self, url: &str) {
        self.call("POST", "/url", &json!({"url": url}));
    }

    /// What the body of a function returns, or its promise.
    pub fn script(&self, body: &str) -> Value {
        let body = json!({"script": body, "args": []});
        self.call("POST", "/execute/sync", &body)
    }

    /// Waits until an expression is true in the page, and says what it is then.
    pub fn until(&self, expression: &str) -> Value {
        let body = format!(
            "const deadline = Date.now() + {PATIENCE};
            return new Promise(done => {{
                const look = () => {{
                    let seen = null;
                    try {{ seen = ({expression}); }} catch (error) {{ seen = null; }}
                    if (seen || Date.now() > deadline) done(seen || null);
                    else setTimeout(look, 20);
                }};
                look();
            }});"
        );
        let seen = self.script(&body);
        assert!(!seen.is_null(), "never {expression} in:\n{}", self.shown());
        seen
    }

    /// All text that the page shows.
    pub fn shown(&self) -> String {
        let text = self.script("return document.body.innerText");
        text.as_str().unwrap().to_owned()
    }

    /// The text of the first element that a selector finds, once there is one.
    pub fn text(&self, selector: &str) -> String {
        let text = self.until(&format!(
            "[document.querySelector({}).innerText]",
            json!(selector)
        ));
        text[0].as_str().unwrap().to_owned()
    }

    /// Waits until what a selector finds has this text.
    pub fn until_is(&self, selector: &str, text: &str) {
        let (one, text) = (json!(selector), json!(text));
        self.until(&format!(
            "document.querySelector({one}).innerText.trim() == {text}"
        ));
    }

    /// Clicks on what a selector finds, as a mouse does: what is covered, or cannot be seen, fails.
    pub fn click(&self, selector: &str) {
        let path = format!("/element/{}/click", self.element(selector));
        self.call("POST", &path, &json!({}));
    }

    /// Types into a field, whose text goes before.
    pub fn write(&self, selector: &str, text: &str) {
        let path = format!("/element/{}/value", self.element(selector));
        let text = format!("{CONTROL}a{RELEASED}{BACKSPACE}{text}");
        self.call("POST", &path, &json!({"text": text}));
    }

    fn element(&self, selector: &str) -> String {
        self.until(&format!(
            "document.querySelector({}) != null",
            json!(selector)
        ));
        let by = json!({"using": "css selector", "value": selector});
        let found = self.call("POST", "/element", &by);
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Presses Tab until the element with this id has the focus.
    pub fn tab_to(&self, id: &str) {
        for _ in 0..200 {
            if self.script("return document.activeElement.id") == id {
                return;
            }
            self.keys(TAB);
        }
        panic!("Tab never comes to {id}");
    }

    /// Keys, one after the other, to whatever has the focus.
    pub fn keys(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()}))
        });
        let strokes: Vec<Value> = strokes.collect();
        let actions = json!({"actions": [{"type": "key", "id": "keys", "actions": strokes}]});
        self.call("POST", "/actions", &actions);
    }

    /// How wide the page is, as on a phone.
    pub fn width(&self, pixels: u32) {
        let size = json!({"width": pixels, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size);
    }

    /// Which theme the system has: `light` or `dark`.
    pub fn theme(&self, theme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": theme});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    }
}

/// Starts chromedriver in a group of its own, where all stays that it starts; everything that is left goes into the
/// folder.
fn driver(folder: &Path) -> Option<(Child, SocketAddr)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .env("TMPDIR", folder)
        .env("HOME", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("chromedriver is missing: apt install chromium-driver, or tests/run.sh --without chromium");
    let mut said = BufReader::new(driver.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let port = said.find_map(|line| {
        let (_, port) = line.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse::<u16>().ok()
    });
    // It must not wait for someone to read what it says.
    std::thread::spawn(move || said.for_each(drop));
    match port {
        Some(port) => Some((driver, SocketAddr::from(([127, 0, 0, 1], port)))),
        None => {
            driver.wait().ok();
            None
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // Where the test has failed, this may fail too.
            let _ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                ask(self.at, "DELETE", &self.session, "")
            }));
        }
        let group = format!("kill -9 -{}", self.driver.id());
        Command::new("sh").args(["-c", &group]).status().ok();
        self.driver.wait().ok();
    }
}
