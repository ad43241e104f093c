//! Config files: which are accepted and what is said about the rest. The expected messages stand
//! beside each file; `UPDATE_EXPECTED=1 cargo test --test it config` writes them anew, to be read
//! before they are committed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ojs_throttle::config::{self, Colours, CommandLine, LogFormat, Settings};
use ojs_throttle::json::Json;
use ojs_throttle::limit::Limited;
use ojs_throttle::policy::{JobView, LimitCache, own_policies};
use proptest::prelude::*;

/// The TOML files of a folder; there must be some.
fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/config")
        .join(folder);
    let entries = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no files in {}", folder.display());
    files
}

/// A file of the folders `valid` and `invalid`, as `FOLDER/NAME`.
fn beside(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config");
    folder.join(name).with_extension("toml")
}

/// What `check` says of one of them.
fn check(name: &str) -> config::Checked {
    config::check(&beside(name), &CommandLine::default(), Colours::None)
}

/// A job without an id.
fn job<'a>(queue: &'a str, kind: &'a str, meta: &'a str) -> JobView<'a> {
    JobView {
        id: None,
        queue,
        kind,
        meta: Some(Json::parse(meta.as_bytes(), 16).unwrap()),
        tenant: None,
    }
}

fn load(path: &Path) -> Result<Settings, config::Report> {
    let name = path.file_name().unwrap().to_str().unwrap();
    Settings::parse(&fs::read_to_string(path).unwrap(), name)
}

/// Compares with the text beside the file.
fn expect(path: &Path, told: &str) {
    let source = fs::read_to_string(path).unwrap();
    let problems = told.split("\n\n").map(|problem| short(problem, &source));
    let found = problems.collect::<Vec<_>>().join("\n");
    let beside = path.with_extension("txt");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        fs::write(&beside, format!("{found}\n")).unwrap();
    }
    let expected = fs::read_to_string(&beside).unwrap_or_default();
    assert_eq!(found, expected.trim_end_matches('\n'), "{}", path.display());
}

/// A problem in two lines: what it is, and `LINE:COLUMN WHAT: ADVICE`. One that is not shown with its line as this stands in
/// the file, and marks below the words that are meant, stays as it is.
fn short(problem: &str, source: &str) -> String {
    let parts = || {
        let mut lines = problem.lines();
        let title = lines.next()?;
        let (name, place) = lines.next()?.trim().strip_prefix("--> ")?.split_once(':')?;
        let (line, column) = place.split_once(':')?;
        let at: usize = column.parse().ok()?;
        let whole = source.lines().nth(line.parse::<usize>().ok()? - 1)?;
        let marked = lines.last()?.split_once("| ")?.1.trim_start();
        let advice = marked.trim_start_matches('^');
        let marks = &marked[..marked.len() - advice.len()];
        let margin = " ".repeat(line.len());
        let before = " ".repeat(at - 1);
        let shown = format!(
            "{title}\n{margin}--> {name}:{place}\n{margin} |\n{line} | {whole}\n{margin} | {before}{marks}{advice}"
        );
        let meant: String = whole.chars().skip(at - 1).take(marks.len()).collect();
        let advice = advice.replacen(' ', ": ", 1);
        (shown == problem).then(|| format!("{title}\n  {place} {meant}{advice}"))
    };
    parts().unwrap_or_else(|| problem.to_owned())
}

/// What sidecars of one store compare has all that limits in it, and nothing that each may have of its own.
#[test]
fn all_that_limits_is_compared_and_nothing_else() {
    let told = |top: &str, policy: &str, way: &str| {
        let text = format!(
            "server.upstream = 'http://127.0.0.1:9090'\n{top}\n\
             [[policy]]\nname = 'p'\nmatch = {{ queue = 'q' }}\nkey = 'k:{{meta.t}}'\n\
             rate = {{ limit = 5000, period = '1s' }}\n{policy}\n\
             [[egress]]\nname = 'out'\nupstream = 'https://example.com'\nconcurrency = 2\n{way}\n"
        );
        let settings = Settings::parse(&text, "a.toml");
        let settings = settings.unwrap_or_else(|report| panic!("{text}\n{report}"));
        settings.limits_told()
    };
    let listen = "listen = '127.0.0.1:8090'";
    let (jobs, ways) = (
        [
            ("", ""),
            ("[job_policies]\naccept = 'ignore'", ""),
            ("[store]\non_store_error = 'open'", ""),
            ("[[queue]]\nname = 'q'\nmax_depth = 5", ""),
            ("", "key_missing = 'skip'"),
            ("", "on_limit = 'drop'"),
            ("", "fair = { by = '{meta.u}', weights = { a = 2 } }"),
            ("", "fair = { by = '{meta.u}', weights = { a = 3 } }"),
            ("", "cost = { from = 'meta.n', max = 5 }"),
            ("", "cost = { from = 'meta.n', max = 6 }"),
            ("", "cost = { default = 2, settle = 'result.n' }"),
            ("", "cost = { default = 2, settle = 'result.m' }"),
            ("", "on_store_error = 'closed'"),
            ("", "feedback = { codes = ['busy'] }"),
            ("", "feedback = { codes = ['full'] }"),
            ("", "sync = 'reserved'"),
        ],
        [
            "",
            "on_store_error = 'closed'",
            "feedback = { codes = ['503'] }",
            "fair = { by = '{header.x-t}', weights = { a = 2 } }",
            "cost = 2",
            "[[egress.budget]]\nname = 'b'\nrate = { limit = 5, period = '1s' }\n\
             cost = { from = 'json.n', default = 2, max = 5, settle = 'header.x-n' }",
        ],
    );
    let of_jobs = jobs.map(|(top, policy)| told(top, policy, listen)["jobs"].clone());
    let of_ways = ways.map(|way| told("", "", &format!("{listen}\n{way}"))["way out out"].clone());
    assert_eq!(BTreeSet::from(of_jobs).len(), jobs.len());
    assert_eq!(BTreeSet::from(of_ways).len(), ways.len());
    let same = told("", "", listen);
    for own in [
        "[hold]\nmax = 700",
        "[upstream]\nclaims_count = 'yes'",
        "server.listen = '127.0.0.1:8091'",
    ] {
        assert_eq!(told(own, "", listen), same, "{own}");
    }
    assert_eq!(told("", "", "listen = '127.0.0.1:8092'"), same);
}

#[test]
fn valid_files_are_accepted() {
    for path in files("valid") {
        let settings = load(&path).unwrap_or_else(|report| panic!("{}\n{report}", path.display()));
        match path.file_stem().unwrap().to_str() {
            Some("warnings") => expect(&path, &settings.warnings.to_string()),
            _ => assert_eq!(
                settings.warnings.warnings(),
                0,
                "{}\n{}",
                path.display(),
                settings.warnings
            ),
        }
    }
}

#[test]
fn invalid_files_are_refused_with_all_their_problems() {
    for path in files("invalid") {
        let report = load(&path).expect_err(&path.display().to_string());
        let text = report.to_string();
        assert!(report.errors() > 0 && !text.contains("hunter2"), "{text}");
        assert!(!format!("{report:?}").contains("hunter2"));
        expect(&path, &text);
    }
}

/// What an example documents: its tables, in them the fields that stand there or in a comment (as `# field =`),
/// and in each of these, where it is a table in one line, what that and the comment above name.
fn documented(text: &str) -> BTreeSet<String> {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.map(str::to_owned).collect()
    };
    let (mut told, mut table, mut above) = (BTreeSet::new(), String::new(), String::new());
    for line in text.lines() {
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).to_owned();
            told.insert(table.clone());
            above.clear();
            continue;
        }
        above += line;
        let field = line.trim_start_matches(['#', ' ']).split_once(" =");
        if let Some((name, _)) = field.filter(|(name, _)| words(name).len() == 1) {
            let path = format!("{table}.{name}");
            told.extend(words(&above).iter().map(|word| format!("{path}.{word}")));
            told.insert(path);
        }
        if !line.starts_with('#') {
            above.clear();
        }
    }
    told
}

#[test]
fn the_example_shows_every_field_with_its_default() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.toml");
    let text = fs::read_to_string(&path).unwrap();
    let settings =
        Settings::parse(&text, "config.example.toml").unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(settings.warnings.warnings(), 0, "{}", settings.warnings);

    let known = config::known_fields(&text);
    assert!(known.len() > 50, "{known:?}");
    let told = documented(&text);
    let missing: Vec<_> = known
        .iter()
        .filter(|field| !told.contains(*field))
        .collect();
    assert!(missing.is_empty(), "not documented: {missing:?}");

    let default = "[server]\nupstream = 'http://127.0.0.1:9090'";
    let default = Settings::parse(default, "t").unwrap();
    assert_eq!(settings.server, default.server);
    assert_eq!(settings.upstream, default.upstream);
    assert_eq!(settings.store, default.store);
    assert_eq!(settings.fetch, default.fetch);
    assert_eq!(settings.hold, default.hold);
    assert_eq!(settings.settle, default.settle);
    assert_eq!(settings.repairs, default.repairs);
    assert_eq!(settings.metrics, default.metrics);
    assert_eq!(settings.policies.accept(), default.policies.accept());
}

#[test]
fn what_the_example_leaves_out_is_read_too() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.toml");
    let mut text = fs::read_to_string(&path).unwrap();
    let token = tempfile::NamedTempFile::new().unwrap();
    fs::write(token.path(), "s3cret\n").unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let roots = folder.join("tests/process/tls/unknown.pem");
    for (commented, real) in [
        (
            "# token = \"file:/run/secrets/ojs-token\"",
            format!("token = \"file:{}\"", token.path().display()),
        ),
        (
            "# ca_file = \"/etc/ssl/private-ca.pem\"",
            format!("ca_file = \"{}\"", roots.display()),
        ),
        (
            "# control_token = \"file:/run/secrets/throttle-control\"",
            format!("control_token = \"file:{}\"", token.path().display()),
        ),
        ("# max = 1024", "max = 1024".into()),
        (
            "# on_store_error = \"closed\"",
            "on_store_error = \"closed\"".into(),
        ),
    ] {
        assert!(text.contains(commented), "{commented}");
        text = text.replace(commented, &real);
    }
    text = text.replace("http://127", "https://127");
    let settings = Settings::parse(&text, "example").unwrap();
    let declared = settings.on_store_error_by_policy.values();
    assert!(declared.eq([&config::OnStoreError::Closed; 3]));
    assert_eq!(settings.upstream.token.as_ref().unwrap().expose(), "s3cret");
    let control = settings.server.control_token.as_ref();
    assert_eq!(control.unwrap().expose(), "s3cret");
    assert_eq!(settings.upstream.ca_file, Some(roots));
    assert_eq!(settings.hold.max, Some(1024));
    assert!(!format!("{settings:?}").contains("s3cret"));
}

/// What is asked of a job, as `policy/key`.
fn asked(settings: &Settings, queue: &str, kind: &str, meta: &str) -> String {
    let found = settings.policies.limits(&job(queue, kind, meta), &[]);
    let found = found.unwrap_or_default();
    let each = found.iter().map(|l| format!("{}/{}", l.policy, l.key));
    each.collect::<Vec<_>>().join(" ")
}

/// What a job pays by this file and whose share it takes, as `key cost group*weight`; none of either is `-`.
fn priced(
    settings: &Settings,
    known: &mut LimitCache,
    job: &JobView<'_>,
    own: &[Limited],
) -> Vec<String> {
    let found = settings.policies.limits(job, own).unwrap_or_default();
    let cached = known.limits(&settings.policies, job);
    assert!(!own.is_empty() || cached == Some(found.clone()), "{job:?}");
    let text = |one: &Limited| {
        let share = one.share.as_ref();
        let share = share.map_or("-".into(), |of| format!("{}*{}", of.group, of.weight));
        let cost = one.cost.rule.as_ref().map(|_| one.cost.pays);
        let cost = cost.map_or("-".into(), |pays| pays.to_string());
        format!("{} {cost} {share}", one.key)
    };
    found.iter().map(text).collect()
}

#[test]
fn costs_and_shares_are_those_of_the_key() {
    let path = beside("valid/cost");
    let mut settings = load(&path).unwrap();
    let tenant = r#"{"tenant_id":"acme","tokens":70}"#;
    let own = br#"{"rate_limit":{"key":"vendor","concurrency":3}}"#;
    let own = own_policies(Json::parse(own, 16).unwrap(), "llm");
    let known = &mut LimitCache::default();
    const SPACED: &[&str] = &["vendor 5 -", "calls - t:acmex_20corp*3"];
    for (queue, kind, meta, own, expected) in [
        ("llm", "a", "{}", &[][..], &["vendor 5 -"][..]),
        ("llm-too", "a", tenant, &[], &["vendor 5 -"]),
        // One of each policy whose numbers it takes.
        ("manual", "a", tenant, &[], &["vendor 5 -"; 2]),
        ("llm", "a", tenant, &own, &["vendor 5 -"; 5]),
        ("other", "a", tenant, &own, &["vendor 5 -"; 5]),
        ("fair", "b", tenant, &[], &["vendor 5 -", "calls - t:b*16"]),
        ("fair", "c", tenant, &[], &["vendor 5 -", "calls - t:c*2"]),
        ("fair", "acme corp", "{}", &[], SPACED),
        ("gb-1", "a", tenant, &[], &["gb-1 4 gb-1:acme*7"]),
        ("gb-1", "a", "{}", &[], &["gb-1 4 gb-1:x_none*1"]),
        ("gb-2", "a", tenant, &[], &["gb-2 4 gb-2:acme*1"]),
    ] {
        let priced = priced(&settings, known, &job(queue, kind, meta), own);
        assert_eq!(priced, expected, "{queue} {kind} {meta}");
    }
    // In a queue whose turns are shared no claim is cut to the limit.
    let gate = |queue: &str| {
        let gate = settings.policies.gate(queue).into_owned();
        let limited = gate.limited.iter().map(|one| one.cost.pays.get());
        (limited.collect::<Vec<_>>(), gate.keyed)
    };
    assert_eq!(gate("llm"), (vec![5], false));
    assert_eq!(gate("fair"), (vec![5], true));
    assert_eq!(gate("gb-1"), (vec![], true));
    // A job whose numbers stand in place of the file's pays as the file says.
    let text = fs::read_to_string(&path).unwrap() + "[job_policies]\naccept = \"replace\"\n";
    settings = Settings::parse(&text, "t").unwrap();
    let priced = priced(&settings, known, &job("llm", "a", "{}"), &own);
    assert_eq!(priced, ["vendor 5 -"]);
}

#[test]
fn policies_mean_what_the_file_says() {
    let settings = load(&beside("valid/issue")).unwrap();
    let acme = r#"{"tenant_id":"acme"}"#;
    for (queue, kind, meta, expected) in [
        ("billing", "payment.charge", acme, "stripe/stripe:acme"),
        ("billing", "report", "{}", ""),
        ("email", "payment.x", "{}", "queue/email"),
    ] {
        assert_eq!(asked(&settings, queue, kind, meta), expected, "{kind}");
    }
    assert!(settings.policies.gate("billing").keyed && settings.policies.gate("other").open());

    let settings = load(&beside("valid/meta")).unwrap();
    let both = r#"{"plan":"free","customer":{"region":"eu"}}"#;
    let dotted = r#"{"plan":"trial-9","customer.region":"eu"}"#;
    for (meta, expected) in [
        (both, "quoted/quoted nested/nested"),
        (dotted, "quoted/quoted"),
    ] {
        assert_eq!(asked(&settings, "q", "t", meta), expected, "{meta}");
    }
    let nested = &settings.policies.policies()[1].limits;
    assert_eq!((nested.concurrency, nested.rates.len()), (Some(0), 2));
    assert_eq!(nested.throttle.unwrap().period.get(), 250);
    assert_eq!(settings.upstream.url.unwrap().base, "/base");
}

#[test]
fn a_policy_without_numbers_takes_those_of_its_key() {
    let text = "server.upstream = \"http://a\"
        [[policy]]\nname = \"a\"\nkey = \"k:{queue}\"\nmatch.type = \"a\"\nconcurrency = 3
        [[policy]]\nname = \"b\"\nkey = \"k:{queue}\"\nmatch.type = \"b\"";
    let settings = Settings::parse(text, "t").unwrap();
    let found = settings.policies.limits(&job("q", "b", "{}"), &[]).unwrap();
    let limited: Vec<_> = found
        .iter()
        .map(|l| (l.policy.to_string(), l.limits.concurrency))
        .collect();
    assert_eq!(limited, [("b".to_owned(), Some(3))]);
}

#[test]
fn numbers_are_what_they_are_written_as() {
    let text = "server.upstream = \"http://a\"
        [[policy]]\nname = \"a\"\nconcurrency = 0x1_0
        feedback = { jitter = 0.2_5, backoff = { multiplier = 0x1_0 } }
        [[queue]]\nname = \"q\"\nmax_depth = 9\nwarning_threshold = 0b1";
    let settings = Settings::parse(text, "t").unwrap();
    let policy = &settings.policies.policies()[0];
    assert_eq!(policy.limits.concurrency, Some(16));
    assert_eq!(policy.feedback.jitter, 0.25);
    assert_eq!(policy.feedback.backoff.unwrap().multiplier, 16.0);
    let (_, bounds) = &settings.bounds.entries[0];
    assert_eq!(bounds.warning_threshold, Some(1.0));
}

#[test]
fn the_command_line_wins_over_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[server]\nlisten = \"127.0.0.1:1\"\nlog = \"json\"\n";
    fs::write(file.path(), text).unwrap();
    let overrides = CommandLine {
        listen: "127.0.0.1:2".parse().ok(),
        upstream: "http://other:3/x".parse().ok(),
        ..CommandLine::default()
    };
    let settings = Settings::load_with(Some(file.path()), &overrides).unwrap();
    assert_eq!(settings.server.listen.port(), 2);
    let upstream = settings.upstream.url.unwrap();
    assert_eq!(upstream.to_string(), "http://other:3/x");
    assert_eq!(settings.server.log, LogFormat::Json);
    assert_eq!(settings.fetch.max_wait, Duration::from_secs(2));

    let bare = Settings::load_with(None, &overrides).unwrap();
    assert_eq!(bare.upstream.url.unwrap().port, 3);
    let none = Settings::load_with(None, &CommandLine::default());
    assert!(none.unwrap_err().to_string().contains("--upstream"));
}

#[test]
fn how_long_a_stop_serves_at_least() {
    let seconds = Duration::from_secs;
    for (server, run, dev) in [
        ("", seconds(5), Duration::ZERO),
        ("drain_timeout = '3s'", seconds(3), Duration::ZERO),
        ("drain_min = '7s'", seconds(7), seconds(7)),
        ("drain_min = '0s'", Duration::ZERO, Duration::ZERO),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!("[server]\nupstream = 'http://ojs'\n{server}");
        fs::write(file.path(), text).unwrap();
        for (drain_min, expected) in [(None, run), (Some(Duration::ZERO), dev)] {
            let overrides = CommandLine {
                drain_min,
                ..CommandLine::default()
            };
            let settings = Settings::load_with(Some(file.path()), &overrides).unwrap();
            assert_eq!(settings.server.drain_min, expected, "{server:?}");
        }
    }
}

/// A device has no end, and neither may have what somebody writes into a file.
#[test]
fn a_token_is_read_from_a_regular_file_of_some_size() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let read = |path: &Path| {
        let path = path.display();
        let text = format!("[server]\nupstream = 'http://ojs'\ncontrol_token = 'file:{path}'\n");
        Settings::parse(&text, "t.toml").map_err(|report| report.to_string())
    };
    fs::write(file.path(), "x".repeat(64 << 10)).unwrap();
    assert!(read(file.path()).is_ok());
    fs::write(file.path(), "x".repeat((64 << 10) + 1)).unwrap();
    let told = read(file.path()).unwrap_err();
    assert!(told.contains("it is larger than 64 KiB"), "{told}");
    let told = read(Path::new("/dev/null")).unwrap_err();
    assert!(told.contains("it is no regular file"), "{told}");
}

#[test]
fn check_says_how_calls_take_turns() {
    let calls = check("valid/egress");
    for part in [
        "the limits of policy crm, in turn by {header.X-Team}, a key for each crm:{header.X-Tenant}",
        "10 in any 1s, in turn by {path.0}, key \"in-turn\"",
    ] {
        assert!(calls.text.contains(part), "{}", calls.text);
    }
}

#[test]
fn check_says_what_bounds_mean() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[server]\nupstream = \"http://127.0.0.1:1\"\n\
        [[queue]]\nname = \"er\"\nenqueue_rate = { limit = 3, period = \"5s\" }\n\
        [[queue]]\nname = \"pk\"\nper_key = { by = \"{tenant}\", max_depth = 2 }\nstrategy = \"block\"\n\
        [[queue]]\nname = \"drp\"\nmax_depth = 5\nstrategy = \"drop_oldest\"\n\
        [[queue]]\nname = \"any\"\nmax_depth = 0\nmax_size = \"1KiB\"\n\
        [[tenant]]\nid = \"t \u{fc}\"\nlimits = { max_queue_depth = 4 }\n";
    std::fs::write(file.path(), text).unwrap();
    let told = config::check(file.path(), &CommandLine::default(), Colours::None);
    let expected = "queue er: at most 3 jobs come in any 5s\n\
        queue pk: at most 2 jobs of each {tenant} wait, producers wait for room\n\
        queue drp: at most 5 jobs wait, the oldest is discarded for a new one\n\
        queue any: any number of jobs waits, at most 1024 bytes wait\n\
        tenant t \u{fc}: at most 4 jobs wait\n\
        ok: 0 policies, 4 queues, 1 tenant";
    assert_eq!(told.text, expected);
}

#[test]
fn check_says_what_is_in_a_file() {
    let ok = check("valid/issue");
    let meaning = "stripe: jobs of queue billing of type payment.*: 5 at once, 100 in any 1m, at least 100ms apart, \
                   a key for each stripe:{meta.tenant_id}, \
                   behind 768 held jobs (192 where a FETCH counts as an attempt) of one key all others wait\nqueue email: 20 at once";
    assert!(ok.text.starts_with(meaning), "{}", ok.text);
    assert!(ok.text.ends_with("\nok: 1 policy, 1 queue"), "{}", ok.text);
    assert_eq!(ok.status, 0);
    let json: serde_json::Value = serde_json::from_str(&ok.json).unwrap();
    assert_eq!(json["ok"], true);
    assert_eq!(json["meaning"][0], meaning.lines().next().unwrap());
    let cost = check("valid/cost");
    for part in [
        "each counts its meta.tokens, key \"vendor\"",
        "in turn by t:{type} among 768 held jobs (192 where a FETCH counts as an attempt), key",
        "queue gb-*: 64 at once, each counts 4, in turn by {queue}:{meta.tenant_id} among",
    ] {
        assert!(cost.text.contains(part), "{}", cost.text);
    }
    for (name, status, part) in [
        (
            "valid/subqueues",
            0,
            "crm: jobs of queue billing: 2 at once, a key for each crm:{meta.tenant_id}, \
             others wait for no key but their own, by subqueues\n",
        ),
        (
            "valid/warnings",
            0,
            "\nok: 4 policies, 7 queues, 2 tenants, 17 egress entries, 36 warnings",
        ),
        ("invalid/unknown_fields", 78, "did you mean `max_wait`?"),
        ("none", 78, "error: cannot read"),
    ] {
        let said = check(name);
        assert_eq!(said.status, status, "{name}");
        assert!(said.text.contains(part), "{name}: {}", said.text);
    }
}

#[test]
fn check_says_that_the_memory_store_forgets_subqueues() {
    let split = "[[queue]]\nname = 'q'\nsubqueues = true\n[store]\nurl = ";
    for (url, forgets) in [("memory:", true), ("sqlite:/tmp/x.db", false)] {
        let told = checked(&format!("{split}'{url}'")).text;
        let split = "queue q: jobs with a key of their own wait in 256 subqueues";
        assert!(told.contains(split), "{told}");
        assert_eq!(told.contains(config::FORGETS_SUBQUEUES), forgets, "{told}");
    }
}

/// Who may choose ids, and what a change does to order, is told of each queue with subqueues; the salt is not.
#[test]
fn check_says_who_may_choose_ids() {
    for (says, number, is_salted) in [
        ("true", 256, false),
        ("512", 512, false),
        (
            "1024\nsubqueues_salt = 'nobody-knows-this-salt'",
            1_024,
            true,
        ),
    ] {
        let told = checked(&format!("[[queue]]\nname = 'q'\nsubqueues = {says}\n"));
        let all = told.text + &told.json;
        for (words, is_said) in [
            (&*format!("wait in {number} subqueues"), true),
            ("later jobs of a tenant may start before earlier ones", true),
            ("an enqueue that is sent again may be stored twice", true),
            ("if strangers do, set `subqueues_salt`", !is_salted),
            ("nobody can reckon who shares one", is_salted),
            ("nobody-knows", false),
        ] {
            assert_eq!(all.contains(words), is_said, "{words}: {all}");
        }
    }
}

/// What sends later jobs of a tenant elsewhere than those that wait in subqueues.
#[test]
fn what_moves_jobs_between_subqueues_is_known() {
    const KEY: &str = "key = 'a:{meta.t}'\n";
    let policy = |of: &str, more: &str| {
        format!("[[policy]]\nname = '{of}'\nmatch = {{ queue = '{of}' }}\nconcurrency = 1\n{more}")
    };
    let queue = |says: &str| format!("[[queue]]\nname = 'q'\nsubqueues = {says}\n");
    let read = |text: &str| {
        let text = format!("[server]\nupstream = 'http://ojs'\n{text}");
        Settings::parse(&text, "t").unwrap().policies
    };
    let (own, split) = (policy("q", KEY), queue("true"));
    let fair = "fair = { by = '{type}' }\n";
    let salted = queue("256\nsubqueues_salt = '0123456789abcdef'");
    let before = read(&format!("{own}{split}"));
    for (after, moves) in [
        (format!("{own}{split}"), false),
        (format!("{own}{}", queue("256")), false),
        (format!("{}{split}", own.replace("= 1", "= 9")), false),
        (format!("{}{own}{split}", policy("other", KEY)), false),
        (own.clone(), false),
        (format!("{}{split}", own.replace("a:", "b:")), true),
        (format!("{own}{fair}{split}"), true),
        (
            format!(
                "{}{own}{split}",
                policy("?", "key = 'c:{type}'\n").replace("name = '?'", "name = 'all'")
            ),
            true,
        ),
        (format!("{own}{}", queue("512")), true),
        (format!("{own}{salted}"), true),
    ] {
        let next = read(&after);
        let moved: Vec<&str> = before.moved(&next).collect();
        assert_eq!(moved, if moves { vec!["q"] } else { vec![] }, "{after}");
    }
}

/// A mistake beside a salt shows nothing of it.
#[test]
fn a_salt_is_not_in_what_is_wrong() {
    let salt = "subqueues_salt = 'short-é'";
    let queue = "[[queue]]\nname = 'q'\nsubqueues = true\n";
    let told = checked(&format!("{queue}{salt}\n"));
    let is_told = told.text.contains("must have 16 to 200 bytes");
    assert!(is_told, "{}", told.text);
    assert!(!(told.text + &told.json).contains("short"));
}

/// What `check` says of a file with this below `[server]`.
fn checked(text: &str) -> config::Checked {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!("[server]\nupstream = 'http://ojs'\n{text}");
    fs::write(file.path(), text).unwrap();
    config::check(file.path(), &CommandLine::default(), Colours::None)
}

#[test]
fn a_policy_that_limits_all_jobs_is_warned_of() {
    let policy = |more: &str| format!("[[policy]]\nname = 'a'\n{more}\nconcurrency = 5\n");
    for more in ["", "match = {}"] {
        let said = checked(&policy(more));
        let told = "policy \"a\" has no `match`: it limits every job of every queue";
        assert!(said.text.contains(told), "{}", said.text);
        assert!(said.text.ends_with("ok: 1 policy, 0 queues, 1 warning"));
        assert_eq!(said.status, 0);
        let json: serde_json::Value = serde_json::from_str(&said.json).unwrap();
        assert_eq!(json["problems"][0]["severity"], "warning");
    }
    let said = checked(&policy("match = { queue = '*' }"));
    assert!(!said.text.contains("warning"), "{}", said.text);
}

/// A queue counts whatever its entry says of it.
#[test]
fn each_queue_of_the_file_is_counted() {
    for says in ["subqueues = true", "concurrency = 5", "max_size = 10"] {
        let queue = format!("[[queue]]\nname = 'mail'\n{says}\n");
        let policy = "[[policy]]\nname = 'a'\nmatch = { queue = '*' }\nkey = 'a:{meta.tenant}'\nconcurrency = 5\n";
        let said = checked(&format!("{queue}{policy}"));
        assert!(said.text.contains("ok: 1 policy, 1 queue"), "{}", said.text);
    }
}

/// Who has one policy only may write it as one table.
#[test]
fn a_policy_may_be_one_table() {
    let said = checked("[policy]\nname = 'a'\nmatch = { queue = 'q' }\nconcurrency = 5\n");
    let meaning = "a: jobs of queue q: 5 at once, key \"a\"\nok: 1 policy, 0 queues";
    assert_eq!(said.text, meaning);
}

#[test]
fn a_port_for_others_without_a_token_is_warned_of() {
    for name in ["listen", "admin_listen"] {
        for (address, token, warned) in [
            ("0.0.0.0:1", "", true),
            ("0.0.0.0:1", "control_token = '0123456789abcdef'", false),
            ("127.0.0.1:1", "", false),
            ("[::1]:1", "", false),
        ] {
            let said = checked(&format!("{name} = '{address}'\n{token}\n"));
            let told = format!("`server.{name}` is not on loopback, and there is no `server.c");
            assert_eq!(said.text.contains(&told), warned, "{}", said.text);
            // Nor may a token go there in clear.
            let is_clear = !token.is_empty() && name == "admin_listen";
            let told = said.text.contains("no `server.admin_tls`");
            assert_eq!(told, is_clear, "{}", said.text);
        }
    }
}

#[test]
fn the_environment_fills_in() {
    let text = "server.upstream = \"https://a\"\nupstream.ca_file = \"${CARGO_MANIFEST_DIR}/tests/process/tls/unknown.pem\"";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process/tls/unknown.pem");
    let settings = Settings::parse(text, "t").unwrap();
    assert_eq!(settings.upstream.ca_file, Some(path));
}

proptest! {
    /// A file that is cut, doubled or scrambled anywhere gets an answer.
    #[test]
    fn no_file_is_too_broken_to_report_on(from in 0..6_000usize, length in 0..60usize, put in "\\PC{0,6}|\\[\\[|\\n|\"|=") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.example.toml");
        let text: Vec<char> = fs::read_to_string(path).unwrap().lines().filter(|line| !line.starts_with('#')).flat_map(|line| line.chars().chain(['\n'])).collect();
        let from = from % text.len();
        let kept = text.iter().take(from).copied().chain(put.chars()).chain(text.iter().skip(from + length).copied());
        let text: String = kept.collect();
        if let Err(report) = Settings::parse(&text, "t") {
            prop_assert!(report.errors() > 0 && report.to_string().contains("error: "));
        }
    }
}
