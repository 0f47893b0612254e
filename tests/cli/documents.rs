//! Every link, path, command, flag, key, value and metric that a document names is one that there is.

mod figures;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::numacast;

/// The documents for people, from the repository's root.
fn documents() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/parts/README.md"].map(Into::into).into();
    let docs = std::fs::read_dir(root("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    found.extend(docs.map(|name| Path::new("docs").join(name)));
    found.extend(root("charts/numacast/README.md").exists().then(|| "charts/numacast/README.md".into()));
    found.sort();
    found
}

fn root(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A document without its blocks, and the blocks with their kind.
fn split(text: &str) -> (String, Vec<(String, String)>) {
    let (mut prose, mut blocks) = (String::new(), Vec::new());
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        match (line.trim().strip_prefix("```"), &mut open) {
            (Some(kind), None) => open = Some((kind.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, block))) => *block += &format!("{line}\n"),
            (None, None) => prose += &format!("{line}\n"),
        }
    }
    assert!(open.is_none(), "a block is not closed");
    (prose, blocks)
}

/// What stands between backticks.
fn spans(prose: &str) -> Vec<String> {
    let paragraphs = prose.split("\n\n").flat_map(|paragraph| {
        paragraph
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    paragraphs.collect()
}

/// All that is wrong at once, a line each.
#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn unless(&mut self, right: bool, sentence: impl FnOnce() -> String) {
        if !right {
            self.0.push(sentence());
        }
    }

    #[track_caller]
    fn none(self) {
        assert!(self.0.is_empty(), "\n{}", self.0.join("\n"));
    }
}

/// The anchors of a document's headings, as GitHub and its like make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = split(text).0;
    let headings = headings.lines().filter_map(|line| line.strip_prefix('#'));
    let anchor = |heading: &str| -> String {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut wrong = Wrong::default();
    for document in documents() {
        let text = read(&document);
        let (prose, _) = split(&text);
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets {
            let place = format!("{}: {target}", document.display());
            if target.contains("://") {
                wrong.unless(target.starts_with("https://"), || place);
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let there = root(&path).exists();
            wrong.unless(there, || format!("{place} leads nowhere"));
            let found = !there || anchor.is_empty() || anchors(&read(&path)).contains(anchor);
            wrong.unless(found, || format!("{place}: there is no such heading"));
        }
    }
    wrong.none();
}

/// The schema of the configuration, and the chart's values.
struct Names {
    schema: Value,
    values: Value,
}

impl Names {
    fn read() -> Self {
        let schema = serde_json::from_str(numacast(&["config", "schema"]).success()).unwrap();
        Self { schema, values: serde_json::from_str(&read("charts/numacast/values.schema.json")).unwrap() }
    }

    /// Is the first word one of ours? Below a choice, as `cache` is one, there is nothing: the plugin has keys below its own.
    fn may_be(&self, key: &str) -> bool {
        let first = key.split('.').next().unwrap();
        let schemas = [&self.schema, &self.values].map(|schema| &schema["properties"][first]);
        schemas.iter().any(|schema| schema.is_object() && schema.get("anyOf").is_none())
    }

    fn is_key(&self, key: &str) -> bool {
        in_schema(&self.schema, key)
    }

    fn is_value(&self, key: &str) -> bool {
        in_schema(&self.values, key)
    }
}

/// Is the key one of a JSON Schema's, or below one where anything may stand?
fn in_schema(root: &Value, key: &str) -> bool {
    let resolved = |schema: &Value| match schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        Some(path) => root.pointer(path).cloned().unwrap_or_default(),
        None => schema.clone(),
    };
    let mut at = root.clone();
    for name in key.split('.') {
        at = match &at["properties"][name] {
            Value::Null => return at["additionalProperties"] != false && at["type"] == "object",
            found => resolved(found),
        };
    }
    true
}

/// `section.key`, `section.key: value` or `section.*`; nothing if the text is something else.
fn key_of(span: &str) -> Option<&str> {
    let key = span.split([':', '=']).next().unwrap().trim_end_matches(".*").trim_end_matches("[]");
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let is_file =
        [".yaml", ".json", ".md", ".sock", ".rs", ".d", ".toml", ".txt"].iter().any(|end| key.ends_with(end));
    (key.contains('.') && !is_file && key.split('.').all(is_name)).then_some(key)
}

/// What is left of a document when the words of others are out: tables that say which of theirs is which of ours.
fn ours(document: &Path, prose: &str) -> String {
    if !document.ends_with("migration.md") {
        return prose.to_owned();
    }
    let theirs = |line: &str| match line.strip_prefix("| ") {
        Some(row) => row.split_once(" | ").map_or(String::new(), |(_, ours)| ours.to_owned()),
        None => line.to_owned(),
    };
    prose.lines().map(|line| theirs(line) + "\n").collect()
}

#[test]
fn every_key_and_every_value_exists() {
    let names = Names::read();
    let (mut seen, mut wrong) = (0, Wrong::default());
    for document in documents() {
        let prose = ours(&document, &split(&read(&document)).0);
        for span in spans(&prose) {
            let Some(key) = key_of(&span).filter(|key| names.may_be(key)) else { continue };
            let place = format!("{}: `{span}`", document.display());
            wrong.unless(names.is_key(key) || names.is_value(key), || {
                format!("{place} is neither a key of ours nor a value of the chart")
            });
            seen += 1;
        }
    }
    wrong.none();
    assert!(seen > 200, "only {seen} were found: is this test blind?");
    for unknown in ["scan.pol", "kubelet.config.sources", "agent.tolerate", "config.scan.pol", "purge.enable"]
    {
        assert!(names.may_be(unknown) && !names.is_key(unknown) && !names.is_value(unknown), "{unknown}");
    }
}

#[test]
fn every_metric_is_exported() {
    let mut wrong = Wrong::default();
    let exported: BTreeSet<String> =
        spans(&read("docs/metrics.md")).into_iter().filter(|span| span.starts_with("numacast_")).collect();
    for document in documents() {
        let text = read(&document);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '*'));
        for word in words.filter(|word| word.starts_with("numacast_")) {
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
            let known = exported.contains(family)
                || word
                    .strip_suffix('*')
                    .is_some_and(|start| exported.iter().any(|name| name.starts_with(start)));
            wrong.unless(known, || {
                format!("{}: {word} is in no table of docs/metrics.md", document.display())
            });
        }
    }
    wrong.none();
}

/// The flags that a command takes, by what it says itself.
fn flags(words: &[&str]) -> Option<String> {
    let outcome = numacast(&[words, &["--help"]].concat());
    (outcome.code == Some(0)).then_some(outcome.stdout)
}

fn check_command(wrong: &mut Wrong, place: &str, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    // `config show` and the like have two words; what follows may be a file or a key.
    let verbs =
        words[1..].iter().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase())).count().min(2);
    let help = (0..=verbs).rev().find_map(|count| flags(&words[1..=count])).unwrap_or_default();
    let verb = verbs == 0 || flags(&words[1..2]).is_some();
    wrong.unless(verb, || format!("{place}: numacast knows no `{}`", words[1]));
    for flag in words.iter().filter(|word| word.starts_with("--")) {
        let flag = flag.split('=').next().unwrap();
        let known = flag == "--version" || help.split([' ', ',', '\n', '[', ']']).any(|word| word == flag);
        wrong.unless(known, || format!("{place}: there is no {flag}"));
    }
}

#[test]
fn every_command_and_every_path_exists() {
    let (makefile, mut wrong) = (read("Makefile"), Wrong::default());
    for document in documents() {
        let (prose, blocks) = split(&read(&document));
        let lines = blocks.iter().filter(|(kind, _)| matches!(kind.as_str(), "sh" | "console"));
        let lines = lines.flat_map(|(_, block)| block.lines().map(str::to_owned));
        for line in spans(&prose).into_iter().chain(lines) {
            let place = format!("{}: `{line}`", document.display());
            for command in line.split(['|', ';', '>']).flat_map(|part| part.split("&&")).map(str::trim) {
                let command = command
                    .split_whitespace()
                    .skip_while(|word| word.contains('=') && !word.starts_with('-'));
                let command = command.collect::<Vec<_>>().join(" ");
                if command.starts_with("numacast ") {
                    check_command(&mut wrong, &place, &command);
                }
                if let Some(target) = command.strip_prefix("make ").and_then(|rest| rest.split(' ').next()) {
                    let known = makefile.lines().any(|line| line.split(':').next() == Some(target));
                    wrong.unless(known || target.contains('='), || {
                        format!("{place}: the Makefile has no such target")
                    });
                }
            }
            let tree = [
                "src/", "docs/", "tests/", "charts/", "benches/", "fuzz/", "crds/", "proto/", ".ci/",
                ".github/", "image/",
            ];
            let placeholder = line.contains(['<', '*', ' ', '{']) || line.contains("...");
            if tree.iter().any(|start| line.starts_with(start)) && !placeholder {
                wrong.unless(root(&line).exists(), || format!("{place} is not there"));
            }
            if line.starts_with("values-") && line.ends_with(".yaml") {
                let there = root("charts/numacast").join(&line).exists();
                wrong.unless(there, || format!("{place} is not there"));
            }
        }
    }
    wrong.none();
}

/// A block is a configuration, values of the chart, or an object for the API server.
#[test]
fn every_example_is_valid() {
    let names = Names::read();
    for document in documents() {
        for (kind, block) in split(&read(&document)).1 {
            if kind != "yaml" {
                continue;
            }
            let place = format!("{}:\n{block}", document.display());
            let documents: Vec<Value> =
                serde_saphyr::from_multiple(&block).unwrap_or_else(|error| panic!("{place}{error}"));
            for example in documents {
                let example = example.as_object().unwrap_or_else(|| panic!("{place}is no mapping"));
                let all = |known: &dyn Fn(&str) -> bool| example.keys().all(|key| known(key));
                let is_object = example.contains_key("apiVersion");
                let is_probe = all(&|key| key.ends_with("Probe"));
                if is_object || is_probe {
                    continue;
                }
                if all(&|key| names.is_key(key)) {
                    let file = tempfile::NamedTempFile::new().unwrap();
                    std::fs::write(file.path(), &block).unwrap();
                    let outcome = numacast(&["config", "check", file.path().to_str().unwrap()]);
                    assert_eq!(outcome.code, Some(0), "{place}{}", outcome.stderr);
                    continue;
                }
                check_values(&names, &place, "", example);
            }
        }
    }
}

/// That every key of an example is one of the chart's.
fn check_values(names: &Names, place: &str, at: &str, example: &serde_json::Map<String, Value>) {
    for (name, value) in example {
        let key = format!("{at}{name}");
        assert!(names.is_value(&key), "{place}{key} is no value of the chart");
        let inner = value.as_object().filter(|_| !names.is_value(&format!("{key}.no such name")));
        if let Some(inner) = inner {
            check_values(names, place, &format!("{key}."), inner);
        }
    }
}
