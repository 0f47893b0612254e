//! Objects as kubectl prints them: one by itself, several as a List.

use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::{Found, Output};
use crate::cluster::{Cluster, StoredObject};
use crate::inspect::show::{Objects, Scope};

/// kubectl's indentation of JSON.
const INDENT: &str = "    ";

/// Prints each page of objects as soon as it was read.
pub(super) async fn print_objects(
    cluster: &Cluster,
    scope: &Scope,
    output: Output,
) -> anyhow::Result<ExitCode> {
    let is_one = matches!(scope, Scope::Named(names) if names.len() == 1);
    let mut found = Found::default();
    let mut objects = Objects::<StoredObject>::new(cluster, scope);
    let mut list = List { output, items: 0 };
    while let Some(page) = objects.next(|node| found.add_missing(node)).await? {
        for object in page {
            found.objects += 1;
            let object = object.json().context("cannot write JSON")?;
            super::super::print(&match is_one {
                true => text(&object, output)?,
                false => list.item(&object)?,
            })?;
        }
    }
    if !is_one {
        super::super::print(&list.end())?;
    }
    Ok(found.exit(scope))
}

fn text(object: &Value, output: Output) -> anyhow::Result<String> {
    if output == Output::Yaml {
        return serde_saphyr::to_string(object).context("cannot write YAML");
    }
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(INDENT.as_bytes());
    object.serialize(&mut Serializer::with_formatter(&mut text, formatter)).context("cannot write JSON")?;
    Ok(String::from_utf8(text).context("cannot write JSON")? + "\n")
}

/// A List that is written item by item.
struct List {
    output: Output,
    items: usize,
}

impl List {
    /// Returns the text of the next item, after the beginning of the List if it is the first one.
    fn item(&mut self, object: &Value) -> anyhow::Result<String> {
        let (is_first, text) = (self.items == 0, text(object, self.output)?);
        self.items += 1;
        let lines = text.trim_end().lines();
        if self.output == Output::Yaml {
            let start = if is_first { "apiVersion: v1\nitems:\n" } else { "" };
            let prefixed = lines.enumerate().map(|(number, line)| match (number, line) {
                (0, line) => format!("- {line}\n"),
                (_, "") => "\n".to_owned(),
                (_, line) => format!("  {line}\n"),
            });
            return Ok(start.to_owned() + &prefixed.collect::<String>());
        }
        let start = match is_first {
            true => format!("{{\n{INDENT}\"apiVersion\": \"v1\",\n{INDENT}\"items\": [\n"),
            false => ",\n".to_owned(),
        };
        let lines: Vec<String> = lines.map(|line| format!("{INDENT}{INDENT}{line}")).collect();
        Ok(start + &lines.join("\n"))
    }

    /// Returns the end of the List or, if it has no items, all of it.
    fn end(&self) -> String {
        let end = "kind: List\nmetadata:\n  resourceVersion: \"\"\n";
        match (self.output, self.items) {
            (Output::Yaml, 0) => format!("apiVersion: v1\nitems: []\n{end}"),
            (Output::Yaml, _) => end.to_owned(),
            (_, items) => {
                let start = format!("{{\n{INDENT}\"apiVersion\": \"v1\",\n{INDENT}\"items\": [],\n");
                let start = if items == 0 { start } else { format!("\n{INDENT}],\n") };
                format!(
                    "{start}{INDENT}\"kind\": \"List\",\n{INDENT}\"metadata\": {{\n{INDENT}{INDENT}\
                     \"resourceVersion\": \"\"\n{INDENT}}}\n}}\n"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn objects() -> [Value; 2] {
        [
            json!({"a": "two\n\n  lines: -\n", "list": [{"b": 1, "c": []}], "e": {}}),
            json!({"a": "- x\n", "n": null, "#": "# no comment"}),
        ]
    }

    fn list(objects: &[Value], output: Output) -> String {
        let mut list = List { output, items: 0 };
        let items: String = objects.iter().map(|object| list.item(object).unwrap()).collect();
        items + &list.end()
    }

    #[test]
    fn a_list_is_that_of_kubectl() {
        for count in 0..=2 {
            let objects = &objects()[..count];
            let whole = json!({"apiVersion": "v1", "items": objects, "kind": "List", "metadata": {"resourceVersion": ""}});
            assert_eq!(list(objects, Output::Json), text(&whole, Output::Json).unwrap());
            let yaml: Value = serde_saphyr::from_str(&list(objects, Output::Yaml)).unwrap();
            assert_eq!(yaml, whole);
        }
    }
}
