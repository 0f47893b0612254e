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
pub(super) mod tests {
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
        }
    }

    pub(crate) fn decode(text: &str) -> Vec<u64> {
        let letters: Vec<char> =
            ('!'..='~').filter(|letter| !['"', '&', '<', '>', '\\'].contains(letter)).collect();
        let (mut numbers, mut high) = (Vec::new(), None);
        for letter in text.chars() {
            let at = letters.iter().position(|known| *known == letter).unwrap() as u64;
            match high {
                _ if at >= FINAL => high = Some(high.unwrap_or(0) * CONTINUED + at - FINAL),
                None => numbers.push(at),
                Some(digits) => {
                    numbers.push(FINAL + digits * FINAL + at);
                    high = None;
                }
            }
        }
        assert_eq!(high, None, "it ends in the middle of a number");
        numbers
    }

    proptest! {
        #[test]
        fn decoded_numbers_are_the_encoded_ones(
            numbers in proptest::collection::vec(0..5_000_000_000_u64, 0..20),
        ) {
            let text: String = numbers.iter().map(|value| number(*value)).collect();
            prop_assert_eq!(decode(&text), numbers);
        }
    }
}
