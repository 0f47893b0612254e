//! The picture of the modules in CONTRIBUTING.md has exactly the arrows that the imports make.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Wrong, read, split};

const DOCUMENT: &str = "CONTRIBUTING.md";

/// The crate whose modules `src/lib.rs` re-exports.
const CORE: &str = "crates/core";

/// The node of the modules that may use everything: arrows from it are not drawn.
const TOP: &str = "top";
/// The node of the modules that everything may use: arrows to it are not drawn.
const BASE: &str = "base";

/// The picture, a Mermaid graph.
#[derive(Default)]
struct Picture {
    /// The nodes in their order, each with its modules.
    nodes: Vec<(String, Vec<String>)>,
    arrows: BTreeSet<(String, String)>,
}

impl Picture {
    /// Parses lines such as `pod["pod, core_v1"]` and `proxy --> grpc & kubelet`.
    fn parse(text: &str) -> Self {
        let mut picture = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with("flowchart")) {
            if let Some((id, modules)) = line.strip_suffix("\"]").and_then(|line| line.split_once("[\"")) {
                picture.nodes.push((id.to_owned(), modules.split(", ").map(str::to_owned).collect()));
            } else if let Some((from, to)) = line.split_once(" --> ") {
                let to = to.split(" & ");
                picture.arrows.extend(to.map(|to| (from.to_owned(), to.to_owned())));
            } else {
                // `~~~` only places a node.
                assert!(line.is_empty() || line.contains(" ~~~ "), "neither a node nor an arrow: {line}");
            }
        }
        picture
    }

    /// Returns the node of a module.
    fn node_of(&self, module: &str) -> Option<&str> {
        let node = self.nodes.iter().find(|(_, modules)| modules.iter().any(|known| known == module));
        node.map(|(id, _)| id.as_str())
    }

    fn position(&self, node: &str) -> Option<usize> {
        self.nodes.iter().position(|(id, _)| id == node)
    }
}

/// A top-level module that a file imports.
type Import = (String, PathBuf);

/// Adds the files of a module and of its submodules, without those that are compiled for tests or the demo
/// only.
fn collect_files(file: PathBuf, found: &mut Vec<PathBuf>) {
    let text = read(&file);
    let is_root = file.ends_with("lib.rs");
    let directory = if is_root { file.with_file_name("") } else { file.with_extension("") };
    let mut is_excluded = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[cfg(") {
            is_excluded = !line.contains("not(") && (line.contains("test") || line.contains("\"demo\""));
        } else if !line.starts_with("#[") {
            if let Some(module) = declared_module(line).filter(|_| !is_excluded) {
                collect_files(directory.join(module).with_extension("rs"), found);
            }
            is_excluded = false;
        }
    }
    found.push(file);
}

/// Returns the name in `mod name;`, with any visibility.
fn declared_module(line: &str) -> Option<&str> {
    let (before, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
    let is_visibility = before.is_empty() || before.starts_with("pub");
    (is_visibility && name.chars().all(is_identifier)).then_some(name)
}

/// Returns the code without comments and without the inline module of tests, which is at the end.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let is_tests = |pair: &[&str]| {
        let is_module = pair[1].contains("mod ") && pair[1].ends_with('{');
        is_module && pair[0].starts_with("#[cfg(") && pair[0].contains("test")
    };
    let end = lines.windows(2).position(is_tests).unwrap_or(lines.len());
    lines[..end].join("\n")
}

/// Returns the top-level modules in `crate::module` and `crate::{module, module::{...}}`.
fn imported_modules(code: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for (at, path) in code.match_indices("crate::") {
        let is_whole_word = !code[..at].ends_with(|c: char| is_identifier(c) || c == '$');
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            _ if !is_whole_word => {}
            Some(group) => modules.extend(names_of_group(group)),
            None => modules.extend(leading_name(rest)),
        }
    }
    modules
}

/// Returns the first name of each item in `a, b::{c, d}, e::f}`.
fn names_of_group(group: &str) -> Vec<String> {
    let (mut names, mut depth, mut is_start) = (Vec::new(), 0, true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_start = true,
            c if depth == 0 && is_start && is_identifier(c) => {
                names.extend(leading_name(&group[at..]));
                is_start = false;
            }
            _ => {}
        }
    }
    names
}

fn leading_name(text: &str) -> Option<String> {
    let name: String = text.chars().take_while(|c| is_identifier(*c)).collect();
    (!name.is_empty()).then_some(name)
}

fn is_identifier(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the imports of each top-level module, of both crates.
fn imports() -> BTreeMap<String, Vec<Import>> {
    let mut files = Vec::new();
    collect_files("src/lib.rs".into(), &mut files);
    collect_files(Path::new(CORE).join("src/lib.rs"), &mut files);
    let mut imports: BTreeMap<String, Vec<Import>> = BTreeMap::new();
    for file in files.into_iter().filter(|file| !file.ends_with("lib.rs")) {
        let module = top_level(&file);
        let modules = imported_modules(&code(&read(&file))).into_iter().filter(|other| *other != module);
        imports.entry(module.clone()).or_default().extend(modules.map(|other| (other, file.clone())));
    }
    imports
}

/// Returns `proxy` for `src/proxy.rs` and `src/proxy/merge.rs`, `pod` for `crates/core/src/pod.rs`.
fn top_level(file: &Path) -> String {
    let file = file.strip_prefix(CORE).unwrap_or(file);
    let name = file.iter().nth(1).expect("it is below src").to_string_lossy();
    name.trim_end_matches(".rs").to_owned()
}

fn picture() -> Picture {
    let blocks = split(&read(DOCUMENT)).1;
    let (_, graph) = blocks.iter().find(|(kind, _)| kind == "mermaid").expect("it has a picture");
    Picture::parse(graph)
}

#[test]
fn the_picture_has_the_arrows_of_the_imports() {
    let (picture, imports, mut wrong) = (picture(), imports(), Wrong::default());
    assert!(imports.len() > 15, "only {} modules were found: is this test blind?", imports.len());
    let mut needed = BTreeSet::new();
    for (module, imported) in &imports {
        let Some(from) = picture.node_of(module) else {
            wrong.unless(false, || format!("{DOCUMENT}: no node has the module {module}"));
            continue;
        };
        for (other, file) in imported {
            // A name that is no module is an item of the crate's root, or another module that is not drawn.
            let Some(to) = picture.node_of(other) else { continue };
            if from == to || from == TOP || to == BASE {
                continue;
            }
            let arrow = (from.to_owned(), to.to_owned());
            wrong.unless(picture.arrows.contains(&arrow), || {
                format!("{DOCUMENT} lacks the arrow {from} --> {to}: {} uses {other}", file.display())
            });
            needed.insert(arrow);
        }
    }
    for (from, to) in picture.arrows.difference(&needed) {
        wrong.unless(false, || format!("{DOCUMENT}: {from} --> {to}, but no file of {from} uses {to}"));
    }
    for module in picture.nodes.iter().flat_map(|(_, modules)| modules) {
        wrong.unless(imports.contains_key(module), || format!("{DOCUMENT}: there is no module {module}"));
    }
    wrong.none();
}

/// Nodes are listed from top to bottom, so no modules depend on each other.
#[test]
fn all_arrows_of_the_picture_point_down() {
    let (picture, mut wrong) = (picture(), Wrong::default());
    for (from, to) in &picture.arrows {
        let positions = picture.position(from).zip(picture.position(to));
        wrong.unless(positions.is_some_and(|(from, to)| from < to), || format!("{from} --> {to}"));
    }
    wrong.none();
    let ends = [picture.nodes.first(), picture.nodes.last()].map(|node| node.map(|(id, _)| id.as_str()));
    assert_eq!(ends, [Some(TOP), Some(BASE)]);
}

/// A module's path in its crate.
type ModulePath = Vec<String>;

/// Returns the code of each module of a crate by path; that of the root has none.
fn modules_of(root: &str) -> BTreeMap<ModulePath, String> {
    let mut files = Vec::new();
    collect_files(Path::new(root).join("lib.rs"), &mut files);
    let path = |file: &Path| -> ModulePath {
        let below = file.strip_prefix(root).expect("it is below the root").with_extension("");
        let names = below.iter().map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| name != "lib").collect()
    };
    files.iter().map(|file| (path(file), code(&read(file)))).collect()
}

/// Adds the paths in `rest`, which continues `path`: one name, or a group of such continuations. Returns what
/// follows them.
fn add_paths<'a>(path: &ModulePath, rest: &'a str, found: &mut Vec<ModulePath>) -> &'a str {
    let rest = rest.trim_start();
    if let Some(mut group) = rest.strip_prefix('{') {
        loop {
            group = add_paths(path, group, found).trim_start();
            match group.strip_prefix(',') {
                Some(next) => group = next,
                None => return group.strip_prefix('}').unwrap_or(group),
            }
        }
    }
    let Some(name) = leading_name(rest) else { return rest };
    let mut longer = path.clone();
    match name.as_str() {
        "super" => drop(longer.pop()),
        "self" => {}
        _ => longer.push(name.clone()),
    }
    match rest[name.len()..].strip_prefix("::") {
        Some(rest) => add_paths(&longer, rest, found),
        None => {
            found.push(longer);
            &rest[name.len()..]
        }
    }
}

/// Returns the paths that begin with `crate` or `super`, from the crate's root.
fn paths_from_root(module: &ModulePath, code: &str) -> Vec<ModulePath> {
    let mut found = Vec::new();
    for (start, base) in
        [("crate::", &ModulePath::new()), ("super::", &module[..module.len().max(1) - 1].to_vec())]
    {
        for (at, _) in code.match_indices(start) {
            // A further `super` belongs to the path that the first one begins.
            if !code[..at].ends_with(|c: char| is_identifier(c) || c == '$' || c == ':') {
                add_paths(base, &code[at + start.len()..], &mut found);
            }
        }
    }
    found
}

/// Returns the other modules that a module uses, except for those above and below it: a module's parts may
/// use what it declares.
fn used_modules(module: &ModulePath, code: &str, all: &BTreeMap<ModulePath, String>) -> BTreeSet<ModulePath> {
    let deepest = |path: ModulePath| {
        (0..=path.len()).rev().map(|end| path[..end].to_vec()).find(|path| all.contains_key(path))
    };
    let used = paths_from_root(module, code).into_iter().filter_map(deepest);
    used.filter(|used| !used.starts_with(module) && !module.starts_with(used)).collect()
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut wrong = Wrong::default();
    for root in ["src", "crates/core/src", "crates/sim/src"] {
        let modules = modules_of(root);
        let mut uses: BTreeMap<ModulePath, BTreeSet<ModulePath>> =
            modules.iter().map(|(path, code)| (path.clone(), used_modules(path, code, &modules))).collect();
        assert!(uses.values().any(|used| used.len() > 3), "{root}: this test finds no imports");
        // A module that uses none of those left is in no circle.
        while let Some(free) = uses.iter().find(|(_, used)| used.is_empty()).map(|(path, _)| path.clone()) {
            uses.remove(&free);
            for used in uses.values_mut() {
                used.remove(&free);
            }
        }
        wrong.unless(uses.is_empty(), || format!("{root}: a circle is among, or above, {:?}", uses.keys()));
    }
    wrong.none();
}

#[test]
fn paths_are_resolved_from_the_root() {
    let text = "use crate::a::{B, c::{self, D}};\nuse super::super::e;\nuse super::{f::G, h};\n";
    let path = |text: &str| -> ModulePath { text.split("::").map(str::to_owned).collect() };
    let expected = ["a::B", "a::c", "a::c::D", "e", "x::f::G", "x::h"].map(path);
    assert_eq!(paths_from_root(&path("x::y"), text), expected);
}

#[test]
fn imports_are_found_in_every_form() {
    let text = "//! crate::comment\n\
                use crate::util::{backoff, crate_name};\n\
                use crate::{agent, pod::{Pod, Phase}, names};\n\
                pub(in crate::cluster) fn f() -> crate::nrt::Zone { mycrate::x() }\n\
                #[cfg(test)]\n\
                mod tests {\n    use crate::cli;\n}\n";
    let expected: BTreeSet<String> =
        ["agent", "cluster", "names", "nrt", "pod", "util"].map(str::to_owned).into();
    assert_eq!(imported_modules(&code(text)), expected);
    assert_eq!(declared_module("pub(crate) mod names;"), Some("names"));
    assert_eq!(declared_module("mod tests {"), None);
    assert_eq!(declared_module("let mod_ = a mod b;"), None);
}
