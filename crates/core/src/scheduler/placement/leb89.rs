//! LEB89: numbers as printable characters that need no quoting in JSON.

pub(super) fn encode(indexes: &[u64]) -> String {
    let mut before = 0;
    let mut text = String::new();
    for index in indexes {
        put(index - before, &mut text);
        before = *index;
    }
    text
}

/// 89 characters that need no quoting in JSON: all printable ones except space, `"`, `&`, `<`, `>` and `\`.
const fn alphabet() -> [char; 89] {
    let mut letters = ['!'; 89];
    let (mut at, mut next) = (0, b'!');
    while next < 0x7F {
        if !matches!(next, b'"' | b'&' | b'<' | b'>' | b'\\') {
            letters[at] = next as char;
            at += 1;
        }
        next += 1;
    }
    letters
}

/// Returns the encoded indexes; `None` if the text is not an encoding.
pub(super) fn decode(text: &str) -> Option<Vec<u64>> {
    let mut before: u64 = 0;
    let sums = numbers_of(text)?.into_iter().map(|difference| {
        before = before.checked_add(difference)?;
        Some(before)
    });
    sums.collect()
}

fn numbers_of(text: &str) -> Option<Vec<u64>> {
    const ALPHABET: [char; 89] = alphabet();
    let (mut numbers, mut high) = (Vec::new(), None);
    for letter in text.chars() {
        let at = ALPHABET.iter().position(|known| *known == letter)? as u64;
        high = match high {
            _ if at >= FINAL => Some(high.unwrap_or(0_u64).checked_mul(CONTINUED)?.checked_add(at - FINAL)?),
            None => {
                numbers.push(at);
                None
            }
            Some(digits) => {
                numbers.push(digits.checked_mul(FINAL)?.checked_add(FINAL + at)?);
                None
            }
        };
    }
    high.is_none().then_some(numbers)
}

/// How many characters end a number: the first 64 of the alphabet.
const FINAL: u64 = 64;
/// How many characters continue a number: the other 25.
const CONTINUED: u64 = 25;

/// Writes a number: its lowest digit as the last character, preceded by the rest, most significant digit
/// first.
fn put(value: u64, text: &mut String) {
    const ALPHABET: [char; 89] = alphabet();
    // Indexes are below 89, so they fit into any `usize`.
    let letter = |at: u64| ALPHABET[usize::try_from(at).unwrap_or_default()];
    if value < FINAL {
        return text.push(letter(value));
    }
    let (mut rest, end) = ((value - FINAL) / FINAL, (value - FINAL) % FINAL);
    let mut digits = Vec::new();
    loop {
        digits.push(letter(FINAL + rest % CONTINUED));
        rest /= CONTINUED;
        if rest == 0 {
            break;
        }
    }
    text.extend(digits.iter().rev());
    text.push(letter(end));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(value: u64) -> String {
        let mut text = String::new();
        put(value, &mut text);
        text
    }

    #[test]
    fn numbers_are_encoded_as_upstream_does() {
        for (value, text) in [
            (0, "!"),
            (1, "#"),
            (63, "e"),
            (64, "f!"),
            (800, "qE"),
            (1663, "~e"),
            (1664, "gf!"),
            (2047, "gke"),
            (40063, "~~e"),
            (40064, "gff!"),
            (100_000, "hrqE"),
        ] {
            assert_eq!(number(value), text, "{value}");
        }
    }

    #[test]
    fn indexes_are_encoded_as_upstream_does() {
        for (indexes, text) in [
            (&[1, 3, 7, 42][..], "#$'H"),
            (&[0, 4, 8, 10], "!''$"),
            (&[100, 108, 116], "fI++"),
            (&[2000, 2008], "gk3+"),
            (&[], ""),
        ] {
            assert_eq!(encode(indexes), text, "{indexes:?}");
            assert_eq!(decode(text).as_deref(), Some(indexes));
        }
    }

    #[test]
    fn other_texts_are_no_encoding() {
        for text in ["f", "!f", "\"", "ä", &"~".repeat(40)] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn decoded_numbers_are_the_encoded_ones(
            numbers in proptest::collection::vec(0..5_000_000_000_u64, 0..20),
        ) {
            let text: String = numbers.iter().map(|value| number(*value)).collect();
            prop_assert_eq!(numbers_of(&text), Some(numbers));
        }
    }
}
