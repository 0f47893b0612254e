//! The Huffman code of HPACK (RFC 7541, Appendix B).

/// Number of characters by the length of their code in bits, from 0. The code is canonical: codes of one
/// length are consecutive numbers, and the first code of the next length follows the last one, with zeros
/// appended. The last code of 30 bits is the end of string, which must not occur.
pub(super) const CODES_BY_LENGTH: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 3];

/// Returns the number of characters in an encoded string; `None` if it is not well formed.
pub(super) fn decoded_length(bytes: &[u8]) -> Option<usize> {
    let mut characters = 0;
    // The code so far, its length, and the first code of that length.
    let (mut code, mut length, mut first) = (0_u32, 0, 0_u32);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| u32::from(byte >> at & 1))) {
        length += 1;
        (code, first) = (code << 1 | bit, first << 1);
        let count = *CODES_BY_LENGTH.get(length)?;
        if code - first < count {
            characters += 1;
            (code, length, first) = (0, 0, 0);
        } else {
            first += count;
        }
    }
    // The remainder is padding: a prefix of the end of string, shorter than a byte.
    (length < 8 && code == (1 << length) - 1).then_some(characters)
}

/// A letter for each code length that letters have, from 5 bits: `a`, `b`, `B` and `X`.
const LETTERS: [u8; 4] = [0b0_0011, 0b10_0011, 0b101_1101, 0b1111_1100];

/// Fills `bytes` exactly with this number of encoded letters.
pub(super) fn encode_letters(bytes: &mut [u8], characters: usize) {
    let bits = (8 * bytes.len()).min(8 * characters);
    // An empty value has nothing to fill, more bytes than characters cannot be filled, and codes shorter than
    // 5 bits do not exist.
    if characters == 0 || bytes.len() > characters || bits < 5 * characters {
        return;
    }
    let (each, longer) = (bits / characters, bits % characters);
    let lengths = (0..characters).map(|at| each + usize::from(at < longer));
    let bits = lengths.flat_map(|length| (0..length).rev().map(move |at| LETTERS[length - 5] >> at & 1));
    // The last byte is padded with ones.
    let mut bits = bits.chain(std::iter::repeat(1));
    for byte in bytes {
        *byte = bits.by_ref().take(8).fold(0, |byte, bit| byte << 1 | bit);
    }
}
