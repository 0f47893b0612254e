//! What `doctor` looks for, and what it finds.

use serde::Serialize;

/// Maximum length of a finding's texts, in bytes: names from the cluster may be long.
const MAX_TEXT: usize = 2000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Zones are wrong or missing, or pods are rejected.
    Error,
    /// Something that leads to wrong zones or rejected pods under certain conditions, or that costs more than it
    /// should.
    Warning,
}

/// Something that `doctor` looks for. `docs/doctor.md` lists them all.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// The name, in the form `ObjectMissing`.
    pub name: &'static str,
    /// How bad a finding is.
    pub severity: Severity,
    /// What it looks for, as a phrase: `a Node with an agent has no object`.
    pub looks_for: &'static str,
    /// What a finding leads to, in one sentence.
    pub why: &'static str,
}

impl Check {
    /// Returns a finding of this check: what has it, such as `Node worker-3`, and what is wrong, in one sentence.
    /// Control characters in the texts are removed.
    pub fn finding(&'static self, place: impl Into<String>, what: impl Into<String>, mend: Mend) -> Finding {
        let Self { name, severity, why, .. } = *self;
        let (place, what) = (printable(&place.into()), printable(&what.into()));
        Finding { severity, check: name, place, what, why, mend: mend.printable() }
    }
}

/// How to mend what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mend {
    /// A command for a shell, complete as it is.
    Run(String),
    /// What to do, if no command does it.
    Do(String),
}

impl Mend {
    /// Returns the text.
    pub fn text(&self) -> &str {
        match self {
            Self::Run(text) | Self::Do(text) => text,
        }
    }

    fn printable(self) -> Self {
        match self {
            Self::Run(text) => Self::Run(printable(&text)),
            Self::Do(text) => Self::Do(printable(&text)),
        }
    }
}

/// One thing that is wrong, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The name of the [`Check`].
    pub check: &'static str,
    /// What has it: `Node worker-3`, `DaemonSet numacast/numacast-agent`.
    pub place: String,
    /// What is wrong, in one sentence.
    pub what: String,
    /// What it leads to, in one sentence.
    pub why: &'static str,
    /// How to mend it.
    pub mend: Mend,
}

/// Returns `text` without control characters, truncated: it may contain what anybody wrote into an object.
pub fn printable(text: &str) -> String {
    let is_shown = |c: &char| {
        !c.is_control()
            && !matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let shown: String = text.chars().map(|c| if c == '\n' { ' ' } else { c }).filter(is_shown).collect();
    numacast_core::util::text::truncate(&shown, MAX_TEXT).to_owned()
}

/// Returns `word` as one word of a shell.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static CHECK: Check =
        Check { name: "Odd", severity: Severity::Error, looks_for: "an oddity", why: "It is odd." };

    #[test]
    fn what_others_wrote_controls_no_terminal() {
        let text = "a\u{1b}[2Jb\nc\u{202e}d\r";
        let found = CHECK.finding(text, text, Mend::Run(text.to_owned()));
        assert_eq!(
            (found.place.as_str(), found.what.as_str(), found.mend.text()),
            ("a[2Jb cd", "a[2Jb cd", "a[2Jb cd")
        );
        assert_eq!(CHECK.finding("x", "é".repeat(MAX_TEXT), Mend::Do(String::new())).what.len(), MAX_TEXT);
    }

    #[test]
    fn a_word_of_a_shell_stays_one_word() {
        for (word, expected) in [
            ("worker-3.example.com", "worker-3.example.com"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's; rm -r /", r"'it'\''s; rm -r /'"),
            ("$(x)", "'$(x)'"),
        ] {
            assert_eq!(shell_word(word), expected);
        }
    }

    #[test]
    fn a_finding_is_serialized_with_its_command() {
        let found = CHECK.finding("Node a", "it is odd", Mend::Run("kubectl get node a".to_owned()));
        let json = serde_json::json!({"severity": "error", "check": "Odd", "place": "Node a", "what": "it is odd",
                                      "why": "It is odd.", "mend": {"run": "kubectl get node a"}});
        assert_eq!(serde_json::to_value(found).unwrap(), json);
    }
}
