//! The map in `src/lib.rs` is true: who may import whom, and that every module is on it. Inside a room no two files
//! import each other, its root holds no data, and a name stands for one type.

use std::collections::{BTreeMap, BTreeSet};
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
            // Cargo runs `build.rs` before it builds the crate.
            let is_module = !["lib", "build"].contains(&module.as_str());
            if is_module && path.extension().is_some_and(|kind| kind == "rs") {
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
        let own_name = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
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

/// Names that stand for several types, each with the reason.
const HOMONYMS: [(&str, &str); 2] = [
    (
        "Claim",
        "what a store knows of a claim, and one that a FETCH makes: neither file names the other's",
    ),
    (
        "Refusal",
        "why limits refuse, and what the hold remembers of that: one is made from the other",
    ),
];

/// A room: a module of the sidecar's crate with its files, or another crate.
#[derive(Default)]
struct Room {
    /// By the path of its module: what it says outside of tests.
    files: BTreeMap<String, String>,
}

fn rooms() -> BTreeMap<String, Room> {
    let mut rooms: BTreeMap<String, Room> = BTreeMap::new();
    let mut folders = vec![src()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let inside = path.strip_prefix(src()).unwrap().with_extension("");
            let names: Vec<_> = inside.iter().map(|name| name.to_str().unwrap()).collect();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && !names.contains(&"tests") {
                let module = names.join("::").trim_end_matches("::lib").to_owned();
                let source = fs::read_to_string(&path).unwrap();
                let program = source
                    .split("#[cfg(test)]\nmod tests {")
                    .next()
                    .unwrap()
                    .to_owned();
                let room = rooms.entry(names[0].to_owned()).or_default();
                room.files.insert(module, program);
            }
        }
    }
    rooms
}

impl Room {
    /// The other files that a file names, and itself where it does. A file of a crate begins its paths with the crate.
    fn uses(&self, module: &str, is_crate: bool) -> BTreeSet<&str> {
        let program = &self.files[module];
        let room = module.split("::").next().unwrap();
        let here = if is_crate {
            format!("crate::{room}::")
        } else {
            "crate::".to_owned()
        };
        let mut text = program
            .replace("(in crate::", "(in ")
            .replace("crate::", &here);
        let parents: Vec<&str> = module.split("::").collect();
        for steps in (1..parents.len()).rev() {
            let parent = parents[..parents.len() - steps].join("::");
            text = text.replace(&"super::".repeat(steps), &format!("crate::{parent}::"));
        }
        let mut paths = imports(&text, "crate::");
        let mods = program
            .lines()
            .filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';'));
        for child in mods {
            let inside = imports(&text, &format!("{child}::"));
            paths.extend(
                inside
                    .iter()
                    .map(|path| format!("{module}::{child}::{path}")),
            );
        }
        let file_of = |path: &String| {
            let files = self.files.keys().filter(|file| within(path, file));
            files.max_by_key(|file| file.len()).map(String::as_str)
        };
        paths.iter().filter_map(file_of).collect()
    }
}

/// What is left of a graph when all that is in no circle is taken away.
fn circles<'a>(
    mut graph: BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    loop {
        let before = graph.len();
        let named: BTreeSet<&str> = graph.values().flatten().copied().collect();
        graph.retain(|file, uses| !uses.is_empty() && named.contains(file));
        let left: BTreeSet<&str> = graph.keys().copied().collect();
        graph
            .values_mut()
            .for_each(|uses| uses.retain(|file| left.contains(file)));
        if graph.len() == before {
            return graph;
        }
    }
}

/// Whoever reads a file must not have read those that use it. Files that only name others are left out, as roots are.
#[test]
fn no_circles_inside_a_room() {
    let mut wrong = Vec::new();
    let mut ties = 0;
    for (name, room) in rooms() {
        let is_crate = src().join(&name).join("Cargo.toml").exists();
        let mut graph = BTreeMap::new();
        for file in room
            .files
            .keys()
            .filter(|file| !only_names(&room.files[*file]))
        {
            let mut uses = room.uses(file, is_crate);
            uses.retain(|used| *used != file && !only_names(&room.files[*used]));
            ties += uses.len();
            graph.insert(file.as_str(), uses);
        }
        let found = circles(graph);
        wrong.extend(
            found
                .iter()
                .map(|(file, uses)| format!("{file} -> {uses:?}")),
        );
    }
    assert!(wrong.is_empty(), "circles:\n{}", wrong.join("\n"));
    assert!(ties > 500, "only {ties} uses were found");
}

/// Whether a file only names other files: all it has is docs, `mod` and `use`.
fn only_names(program: &str) -> bool {
    let code = program
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    code.split(';').map(str::trim_start).all(|item| {
        let (_, item) = match item.starts_with('#') {
            true => item.rsplit_once("]\n").unwrap_or_default(),
            false => ("", item),
        };
        let item = item.trim_start();
        let item = item
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ");
        let item = item.trim_start_matches("pub ");
        item.is_empty()
            || item.starts_with("extern crate ")
            || item.starts_with("mod ")
            || item.starts_with("use ")
    })
}

/// Data in a root tie all files of the room to it. So it has docs, `mod` and `use`, and data have files of their own.
#[test]
fn the_root_of_a_room_only_names_its_files() {
    let rooms = rooms();
    let roots = rooms.iter().filter(|(_, room)| room.files.len() > 1);
    let found = roots.filter(|(name, room)| !only_names(&room.files[*name]));
    let found: Vec<&str> = found.map(|(name, _)| name.as_str()).collect();
    assert!(found.is_empty(), "roots with data: {found:?}");
}

/// A name that stands for one type needs no path to be understood, and a doc comment no other one.
#[test]
fn a_name_stands_for_one_type_and_a_comment_for_itself() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut leaning = Vec::new();
    for (module, program) in rooms().into_values().flat_map(|room| room.files) {
        for whole in program.lines() {
            let line = whole.trim_start();
            if ["/// The same ", "//! The same "]
                .iter()
                .any(|begin| line.starts_with(begin))
            {
                leaning.push(format!("{module}: {line}"));
            }
            let item = line.strip_prefix("pub").map_or(line, |item| {
                let end = if item.starts_with('(') { ')' } else { ' ' };
                item.split_once(end)
                    .map_or("", |(_, item)| item.trim_start())
            });
            let mut words = item.split(|c: char| !c.is_alphanumeric() && c != '_');
            let is_type = words.next().is_some_and(|word| {
                // A `type` that is indented is one of a trait.
                let is_alias = word == "type" && whole == line;
                is_alias || ["struct", "enum", "trait"].contains(&word)
            });
            // A macro gives its own names: `struct $Name`.
            if let Some(name) = words.next().filter(|name| is_type && !name.is_empty()) {
                types
                    .entry(name.to_owned())
                    .or_default()
                    .push(module.clone());
            }
        }
    }
    assert!(leaning.is_empty(), "{}", leaning.join("\n"));
    assert!(types.len() > 500, "only {} types were found", types.len());
    types.retain(|_, modules| modules.len() > 1);
    let listed: BTreeSet<&str> = HOMONYMS.iter().map(|(name, _)| *name).collect();
    let found: BTreeSet<&str> = types.keys().map(String::as_str).collect();
    assert_eq!(found, listed, "{types:?}");
    assert!(listed.len() <= 4, "too many names stand for several types");
}

#[test]
fn a_circle_is_found_and_what_leads_to_it_is_not() {
    let mut room = Room::default();
    for (file, text) in [
        ("r", "mod a;\nmod b;\nmod c;"),
        ("r::a", "use super::b::B;\nuse crate::r::c::C;"),
        (
            "r::b",
            "mod inner;\nuse super::c::{C, D};\nfn f() -> inner::E {}",
        ),
        (
            "r::b::inner",
            "use super::super::c::C;\npub(in crate::r::b) struct E;",
        ),
        ("r::c", "fn g() { super::b::f() }"),
    ] {
        room.files.insert(file.to_owned(), text.to_owned());
    }
    assert_eq!(
        room.uses("r::b", false),
        BTreeSet::from(["r::b::inner", "r::c"])
    );
    let files = room.files.keys().filter(|file| *file != "r");
    let graph = files.map(|file| (file.as_str(), room.uses(file, false)));
    let found = circles(graph.collect());
    assert_eq!(
        found.into_keys().collect::<Vec<_>>(),
        ["r::b", "r::b::inner", "r::c"]
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

/// How many parts of the sidecar's state each room reads. A room that needs fewer lowers its number here.
#[test]
fn rooms_read_no_more_of_the_state_than_before() {
    let most = [
        ("front", 13),
        ("control", 8),
        ("show", 14),
        ("jobs", 13),
        ("egress", 7),
        ("admit", 10),
        ("shadow", 5),
        ("settle", 12),
        ("inquiry", 13),
    ];
    let state = fs::read_to_string(src().join("desk/sidecar.rs")).unwrap();
    let state = state.split("pub struct Sidecar {").nth(1).unwrap();
    let state = state.split("\n}").next().unwrap().lines();
    let parts: Vec<&str> = state
        .filter_map(|line| line.trim().strip_prefix("pub(crate) ")?.split(':').next())
        .collect();
    assert!(parts.len() > 10, "{parts:?}");
    let sources = sources();
    let read = |room: &str| {
        let of_room = sources.iter().filter(|(module, _)| module == room);
        let texts: Vec<String> = of_room
            .map(|(_, path)| fs::read_to_string(path).unwrap())
            .map(|text| {
                let program = text.split("#[cfg(test)]\nmod ").next().unwrap();
                // A chain may be broken over lines.
                program.split_whitespace().collect()
            })
            .collect();
        let reads = |part: &&str| {
            let at = format!("sidecar.{part}");
            let ends =
                |text: &str| !text.starts_with(|c: char| c.is_alphanumeric() || "_(".contains(c));
            let mut texts = texts.iter().flat_map(|text| text.split(&*at).skip(1));
            texts.any(ends)
        };
        parts.iter().filter(|part| reads(part)).count()
    };
    let found = most.map(|(room, _)| (room, read(room)));
    assert_eq!(found, most);
}

/// The page that walks one FETCH names all files that it meets, and no more than a reader can hold in mind.
#[test]
fn a_fetch_reads_in_few_files() {
    let map = fs::read_to_string(src().join("lib.rs")).unwrap();
    let page = map.split("//! # One FETCH\n").nth(1).unwrap();
    let page = page.split("//! # ").next().unwrap();
    let mut files: Vec<&str> = Vec::new();
    for word in page.split('`').filter(|word| word.ends_with(".rs")) {
        assert!(src().join(word).exists(), "{word} is on the page of FETCH");
        if !files.contains(&word) {
            files.push(word);
        }
    }
    // What only names the parts, keeps what they share, or is for a case beside the way.
    let beside = ["drain", "fetching", "naming", "pollers", "request", "way"];
    for entry in fs::read_dir(src().join("jobs/fetch")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let named = files.contains(&&*format!("jobs/fetch/{name}.rs"));
        assert!(named || beside.contains(&name), "{name} is not on the page");
    }
    assert!(files.len() <= 25, "one FETCH takes {} files", files.len());
}

/// What a FETCH asks of the hold stands at the head of that, and is little enough to be kept in mind.
#[test]
fn a_fetch_asks_few_questions_of_the_hold() {
    let head = fs::read_to_string(src().join("hold/lib.rs")).unwrap();
    let links = head.split("](Hold::").skip(1);
    let named: BTreeSet<&str> = links.map(|link| link.split(')').next().unwrap()).collect();
    let mut asked = BTreeSet::new();
    for entry in fs::read_dir(src().join("jobs/fetch")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        let program = source.split("#[cfg(test)]\nmod ").next().unwrap();
        let lines = program.lines().map(str::trim);
        let program: String = lines.filter(|line| !line.starts_with("//")).collect();
        for call in program.split("hold.").skip(1) {
            let (name, _) = call.split_once('(').unwrap();
            if name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                asked.insert(name.to_owned());
            }
        }
    }
    assert!(asked.len() > 9, "only {asked:?} were found");
    let unnamed: Vec<_> = asked.iter().filter(|of| !named.contains(&***of)).collect();
    assert!(unnamed.is_empty(), "{unnamed:?} is not at the head");
    assert!(named.len() <= 14, "{} questions: {named:?}", named.len());
}

/// A test says what it wants of a sidecar, and two files know how one is started: in this process, or as the program.
/// Benches, which are programs of their own, compare builds that they are given.
#[test]
fn tests_start_sidecars_in_two_ways() {
    let tests = src().join("../tests");
    let ways = [
        ("Running::start(", "sidecar/simulated.rs"),
        ("CARGO_BIN_EXE_", "sidecar/process.rs"),
    ];
    let mut found = BTreeSet::new();
    let mut folders = vec![tests.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&tests).unwrap().to_str().unwrap();
            // This file has to say what it looks for.
            if path.is_dir() && name != "bench" {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "house.rs" {
                let source = fs::read_to_string(&path).unwrap();
                let named = ways.iter().filter(|(word, _)| source.contains(word));
                found.extend(named.map(|(word, _)| (*word, name.to_owned())));
            }
        }
    }
    let known = ways.map(|(word, file)| (word, file.to_owned()));
    assert_eq!(found, BTreeSet::from(known));
}

/// Whoever has the project alone has all that it needs. What OJS publishes may lie beside it; one script takes it from
/// there or fetches it, and one runs the tests in both cases.
#[test]
fn nothing_reaches_outside_its_own_folder() {
    let (root, beside) = (src().join(".."), concat!("../", "shared"));
    let mut found = Vec::new();
    let mut todo: Vec<_> = [
        "src",
        "tests",
        ".ci",
        "README.md",
        "Cargo.toml",
        "Dockerfile",
    ]
    .map(|name| root.join(name))
    .into();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(beside) {
            let name = path.strip_prefix(&root).unwrap();
            found.push(name.to_str().unwrap().to_owned());
        }
    }
    found.sort();
    assert_eq!(found, [".ci/run", "tests/run.sh"]);
}
