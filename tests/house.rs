//! The map in `src/lib.rs` is true: who may import whom, and that every module is on it. And tests that need
//! a server say so in their names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The table of the map: each module, and the paths it may import. In the order of its lines.
fn table() -> Vec<(String, Vec<String>)> {
    let map = fs::read_to_string(src().join("lib.rs")).unwrap();
    let rows = map
        .lines()
        .filter_map(|line| line.strip_prefix("//! ")?.split_once("->"));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    rows.map(|(from, to)| (from.trim().to_owned(), words(to)))
        .collect()
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All sources of the sidecar's own crate, with the module that each belongs to.
fn sources() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut folders = vec![src()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // What a crate of its own may import, the compiler says.
                if !path.join("Cargo.toml").exists() {
                    folders.push(path);
                }
                continue;
            }
            let inside = path.strip_prefix(src()).unwrap().with_extension("");
            let module = inside.iter().next().unwrap().to_str().unwrap().to_owned();
            if module != "lib" && path.extension().is_some_and(|kind| kind == "rs") {
                found.push((module, path));
            }
        }
    }
    found.sort();
    found
}

/// The paths into this crate that a source names, without comments.
fn imports(source: &str, root: &str) -> Vec<String> {
    let code: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut paths = Vec::new();
    for (at, _) in code.match_indices(root) {
        let own_name = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if own_name {
            expand("", &code[at + root.len()..], &mut paths);
        }
    }
    paths
}

/// Reads the path at the head of `text`, and each path of a group; what follows is returned.
fn expand<'a>(before: &str, text: &'a str, paths: &mut Vec<String>) -> &'a str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches([' ', '\n', ',']);
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            rest = expand(before, rest, paths);
        }
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    assert_ne!(end, 0, "no name, no group: {:?}", text.lines().next());
    let (name, rest) = text.split_at(end);
    let path = match (before, name) {
        (_, "self") => before.to_owned(),
        ("", _) => name.to_owned(),
        _ => format!("{before}::{name}"),
    };
    match rest.strip_prefix("::") {
        Some(deeper) if !deeper.starts_with('<') => expand(&path, deeper, paths),
        _ => {
            paths.push(path);
            rest.strip_prefix(" as ").map_or(rest, |rest| {
                rest.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
            })
        }
    }
}

/// Whether `path` is `allowed`, or inside it.
fn within(path: &str, allowed: &str) -> bool {
    path.strip_prefix(allowed)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[test]
fn every_import_is_on_the_map() {
    let table: BTreeMap<_, _> = table().into_iter().collect();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (module, path) in sources() {
        let source = fs::read_to_string(&path).unwrap();
        let root = if module == "main" {
            "ojs_throttle::"
        } else {
            "crate::"
        };
        let allowed = &table[&module];
        for import in imports(&source, root) {
            seen += 1;
            // Any unit test may use what tests share.
            let is_own = within(&import, &module) || within(&import, "equipment");
            if !is_own && !allowed.iter().any(|to| within(&import, to)) {
                wrong.push(format!("{}: {module} -> {import}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 100, "only {seen} imports were found");
}

/// `super::` must not be a way around: no file climbs out of its own module.
#[test]
fn nothing_climbs_out_of_its_module() {
    for (_, path) in sources() {
        let depth = path.strip_prefix(src()).unwrap().iter().count();
        let source = fs::read_to_string(&path).unwrap();
        // One more in the tests at the end of a file, which are a module themselves.
        let program = source.split("#[cfg(test)]\nmod ").next().unwrap();
        let climbs = |text: &str, steps: usize| text.contains(&"super::".repeat(steps));
        assert!(!climbs(program, depth), "{}", path.display());
        assert!(!climbs(&source, depth + 1), "{}", path.display());
    }
}

#[test]
fn every_module_is_on_the_map() {
    let table = table();
    let map = fs::read_to_string(src().join("lib.rs")).unwrap();
    let modules = map
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .filter(|module| *module != "equipment");
    for module in modules {
        assert!(
            table.iter().any(|(name, _)| name == module),
            "who may {module} import?"
        );
        assert!(
            map.contains(&format!("| [`{module}`] | ")),
            "what is {module}?"
        );
    }
}

/// The lines of crates say what their manifests do.
#[test]
fn crates_import_what_the_map_says() {
    let table: BTreeMap<_, _> = table().into_iter().collect();
    let map = fs::read_to_string(src().join("lib.rs")).unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(src()).unwrap() {
        let folder = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let name = folder.file_name().unwrap().to_str().unwrap();
        let own = |line: &str| Some(line.strip_prefix("ojs-")?.split_once('.')?.0.to_owned());
        let imports: Vec<String> = manifest.lines().filter_map(own).collect();
        assert_eq!(table[name], imports, "{name}");
        assert!(map.contains(&format!("| [`{name}`] | ")), "what is {name}?");
        seen += 1;
    }
    assert!(seen > 3, "only {seen} crates were found");
}

/// An arrow only ever points to a line further down, so there are no circles.
#[test]
fn arrows_point_down() {
    let table = table();
    for (line, (from, to)) in table.iter().enumerate() {
        for to in to {
            let module = to.split("::").next().unwrap();
            let below = table[line + 1..].iter().any(|(name, _)| name == module);
            assert!(below, "{from} -> {to}");
        }
    }
}

#[test]
fn imports_are_read_in_all_their_forms() {
    let source = "use crate::a::{self, b::C as D, e};\npub use crate::{f, g::{h, i}};\n\
        // crate::no\n  fn j() -> crate::k::L<'_> { crate::m::n(1) }\npub(in crate::o) fn p() {}\nuse my_crate::q;\n";
    let found = imports(source, "crate::");
    let expected = [
        "a", "a::b::C", "a::e", "f", "g::h", "g::i", "k::L", "m::n", "o",
    ];
    assert_eq!(found, expected);
}

/// What `tests/run.sh --without` leaves out, and the words of a source that starts it.
const SERVICES: [(&str, &[&str]); 9] = [
    (
        "redis",
        &[
            "RedisServer",
            "RedisCluster",
            "WatchedRedis",
            "OldRedis",
            "redis-server",
            "Cause::needs_redis",
        ],
    ),
    ("redis_6", &["OldRedis"]),
    ("pgbouncer", &["PgBouncer"]),
    (
        "postgres",
        &["PostgresServer", "PgBouncer", "shared_postgres", "initdb"],
    ),
    ("faketime", &["libfaketime"]),
    ("prometheus", &["PrometheusServer", "promtool"]),
    ("systemd", &["systemd-analyze"]),
    ("chromium", &["Browser", "chromedriver"]),
    ("tools", &["Terminal"]),
];

/// A function, a type or a macro's use in a file of tests.
struct Item {
    text: String,
    name: String,
    is_test: bool,
}

impl Item {
    fn new(text: String) -> Item {
        let line = |begin: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.trim_start_matches("pub ").strip_prefix(begin))
        };
        let word = |text: &str| {
            let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
            text[..end.unwrap_or(text.len())].to_owned()
        };
        let function = line("fn ").or_else(|| line("async fn "));
        let of = line("impl ").map(|of| of.split_once(" for ").map_or(of, |(_, of)| of));
        let name = function.or_else(|| line("struct ")).or(of).map(word);
        let is_test = ["#[test]", "#[tokio::test", "crate::stamp_"]
            .iter()
            .any(|begin| line(begin).is_some());
        Item {
            name: name.unwrap_or_default(),
            is_test,
            text,
        }
    }

    /// Whether it calls the function, or names the type, that `other` is.
    fn uses(&self, other: &Item) -> bool {
        let inside = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        !other.name.is_empty()
            && self.text.match_indices(&other.name).any(|(at, name)| {
                let after = &self.text[at + name.len()..];
                let called = name.starts_with(char::is_uppercase) || after.starts_with('(');
                called && !self.text[..at].ends_with(inside) && !after.starts_with(inside)
            })
    }
}

/// The items of a file, without comments and imports.
fn items(source: &str) -> Vec<Item> {
    let mut found = vec![String::new()];
    for line in source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
    {
        let item = found.last_mut().unwrap();
        *item += line;
        *item += "\n";
        let ends = line.starts_with('}') || (!line.starts_with(' ') && line.ends_with(';'));
        if ends {
            found.push(String::new());
        }
    }
    found.retain(|text| !text.trim_start().starts_with("use "));
    found.into_iter().map(Item::new).collect()
}

/// The tests of a file that start one of `words`, themselves or by what they call there, and the others.
fn tests(source: &str, words: &[&str]) -> (Vec<String>, Vec<String>) {
    let (mut need, mut others): (Vec<Item>, Vec<Item>) = items(source)
        .into_iter()
        .partition(|item| words.iter().any(|word| item.text.contains(word)));
    while let Some(next) = others
        .iter()
        .position(|item| need.iter().any(|by| item.uses(by)))
    {
        need.push(others.swap_remove(next));
    }
    let names = |items: Vec<Item>| {
        items
            .into_iter()
            .filter(|item| item.is_test)
            .map(|item| item.name)
            .collect()
    };
    (names(need), names(others))
}

/// Every file of tests, with the path of its module. Benches are none.
fn test_files() -> Vec<(String, PathBuf)> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files = Vec::new();
    let mut folders = vec![tests.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("tests/bench") {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let inside = path.strip_prefix(&tests).unwrap().with_extension("");
                let names: Vec<_> = inside.iter().map(|name| name.to_str().unwrap()).collect();
                files.push((names.join("::"), path));
            }
        }
    }
    files
}

#[test]
fn what_starts_a_server_is_left_out_without_it_and_nothing_else() {
    let script = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run.sh"));
    assert!(script.unwrap().contains("skip+=(--skip \"on_$service\")"));
    let mut wrong = Vec::new();
    for (service, words) in SERVICES {
        let mut seen = 0;
        for (module, path) in test_files() {
            let source = fs::read_to_string(&path).unwrap();
            let (need, others) = tests(&source, words);
            seen += need.len();
            let skipped =
                |test: &str| format!("{module}::{test}").contains(&format!("on_{service}"));
            let missed = need.iter().filter(|test| !skipped(test));
            wrong.extend(missed.map(|test| {
                format!("{module}::{test} needs {service}: put on_{service} into its name")
            }));
            let too_many = others.iter().filter(|test| skipped(test));
            wrong.extend(too_many.map(|test| format!("{module}::{test} needs no {service}")));
        }
        assert!(seen >= 2, "{seen} tests need {service}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_a_test_starts_is_seen_through_what_it_calls() {
    let source = "use crate::a::AServer;\n// AServer\nfn store() -> u8 {\n    AServer::start()\n}\n\
        struct Rig {\n    of: AServer,\n}\n#[test]\nfn one() {\n    store()\n}\n\
        #[tokio::test]\nasync fn two() {\n    Rig::new(\n    )\n}\n#[test]\nfn three() {\n    a.store(my_store());\n}\n";
    let (need, others) = tests(source, &["AServer"]);
    assert_eq!(
        (need, others),
        (
            vec!["one".to_owned(), "two".to_owned()],
            vec!["three".to_owned()]
        )
    );
}

/// What `cargo build --release` builds quickly, at a lower level, is raised again in what ships.
#[test]
fn what_ships_raises_each_crate_that_a_release_lowers() {
    let manifest = fs::read_to_string(src().join("../Cargo.toml")).unwrap();
    let levels = |profile: &str| -> BTreeMap<String, String> {
        let head = format!("[profile.{profile}.package.");
        let entries = manifest.split(&head).skip(1);
        let entries = entries.map(|entry| entry.split_once("]\nopt-level = ").unwrap());
        entries
            .map(|(name, rest)| (name.to_owned(), rest.lines().next().unwrap().to_owned()))
            .collect()
    };
    let (release, dist) = (levels("release"), levels("dist"));
    let lowered = release.iter().filter(|(_, level)| *level != "\"s\"");
    let lowered: Vec<&String> = lowered.map(|(name, _)| name).collect();
    assert!(lowered.len() > 5, "{release:?}");
    assert_eq!(lowered, dist.keys().collect::<Vec<_>>());
    assert!(dist.values().all(|level| level == "2"), "{dist:?}");
}
