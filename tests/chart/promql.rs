//! A partial PromQL parser that finds the names of metrics and labels.

use std::collections::BTreeSet;

/// A metric in an expression, with the labels in its matchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) labels: BTreeSet<String>,
}

/// The metrics and labels of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) selectors: Vec<Selector>,
    /// The labels in `by (...)`, `on (...)` and so on.
    pub(crate) grouped: BTreeSet<String>,
}

/// Keywords followed by labels in parentheses.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Other keywords that are not metrics.
const WORDS: [&str; 7] = ["and", "or", "unless", "bool", "offset", "inf", "nan"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text,
    Sign(char),
}

fn tokens(expression: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => {
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    if c == '\\' {
                        rest.next();
                    }
                }
                tokens.push(Token::Text);
            }
            // A number with exponent or unit: 1e-3, 10m.
            '0'..='9' | '.' => while rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '.').is_some() {},
            '[' => while rest.next().is_some_and(|c| c != ']') {},
            c if c.is_ascii_alphabetic() || matches!(c, '_' | ':' | '$') => {
                let mut word = String::from(c);
                while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':')) {
                    word.push(c);
                }
                tokens.push(Token::Word(word));
            }
            c if c.is_whitespace() => {}
            c => tokens.push(Token::Sign(c)),
        }
    }
    tokens
}

/// Returns the metrics and labels of an expression.
pub(crate) fn query(expression: &str) -> Query {
    let mut query = Query::default();
    let mut tokens = tokens(expression).into_iter().peekable();
    // The words up to a closing character; those before a matcher's operator are labels.
    let labels = |tokens: &mut std::iter::Peekable<std::vec::IntoIter<Token>>, end: char| {
        let inside = tokens.by_ref().take_while(|token| *token != Token::Sign(end));
        inside.filter_map(|token| if let Token::Word(word) = token { Some(word) } else { None }).collect()
    };
    while let Some(token) = tokens.next() {
        let Token::Word(word) = token else { continue };
        let opens =
            |tokens: &mut std::iter::Peekable<_>, sign| tokens.next_if_eq(&Token::Sign(sign)).is_some();
        if LISTS.contains(&word.as_str()) {
            if opens(&mut tokens, '(') {
                let names: BTreeSet<String> = labels(&mut tokens, ')');
                query.grouped.extend(names);
            }
        } else if opens(&mut tokens, '{') {
            let labels = labels(&mut tokens, '}');
            query.selectors.push(Selector { metric: word, labels });
        } else if tokens.peek() != Some(&Token::Sign('('))
            && !matches!(tokens.peek(), Some(Token::Word(next)) if LISTS.contains(&next.as_str()))
            && !WORDS.contains(&word.as_str())
        {
            query.selectors.push(Selector { metric: word, labels: BTreeSet::new() });
        }
    }
    query
}

#[test]
fn names_are_found_wherever_they_stand() {
    let selector = |metric: &str, labels: &[&str]| Selector {
        metric: metric.into(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let found = query(
        r#"sum by (a, b) (rate(x_total{job="n{}", k=~"v\"w"}[5m])) / on (c) group_left y > 1e-3 and time() - z > 10"#,
    );
    assert_eq!(found.selectors, [selector("x_total", &["job", "k"]), selector("y", &[]), selector("z", &[])]);
    assert_eq!(found.grouped, names(&["a", "b", "c"]));
    let found = query(
        "histogram_quantile(0.99, sum without (p) (rate(h_bucket[$__rate_interval]))) > bool 0.5 or vector(0)",
    );
    assert_eq!((found.selectors, found.grouped), (vec![selector("h_bucket", &[])], names(&["p"])));
    assert_eq!(query("absent(up)").selectors, [selector("up", &[])]);
    assert_eq!(query("sum(x) by (a)").grouped, names(&["a"]));
}
