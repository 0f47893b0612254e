//! The frames of a watch: four bytes that say how long it is, big-endian, before each of them.

use super::Odd;

/// A pod is at most some 3 MiB, which is what the API server takes.
pub(super) const LARGEST: usize = 8 << 20;

/// A buffer that has been larger is given back when it is empty: most frames are some 10 KiB.
const KEPT: usize = 64 << 10;

/// Takes frames out of a stream of bytes, in whatever pieces these come.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// What came; before `start` it was taken.
    bytes: Vec<u8>,
    start: usize,
}

impl Frames {
    /// Another piece came. All frames that are there should have been taken: what was not is held.
    pub fn put(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
        self.bytes.extend_from_slice(piece);
    }

    /// The next frame that is there; `None` if that is not all there yet.
    ///
    /// # Errors
    /// It is larger than anything that the API server has; then no more comes of the stream.
    pub fn take(&mut self) -> Result<Option<&[u8]>, Odd> {
        let Some((length, rest)) = self.bytes[self.start..].split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LARGEST {
            return Err(Odd::TooLarge(LARGEST));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.start + size_of::<u32>();
        self.start = start + length;
        Ok(Some(&self.bytes[start..self.start]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames as they are on the wire.
    fn stream(frames: &[&[u8]]) -> Vec<u8> {
        frames.iter().flat_map(|frame| [&(frame.len() as u32).to_be_bytes()[..], frame].concat()).collect()
    }

    #[test]
    fn frames_come_out_however_the_bytes_come_in() {
        let long = vec![7; 3000];
        let frames: [&[u8]; 5] = [b"a", b"", b"some more", &long, b"z"];
        let stream = stream(&frames);
        for size in [1, 2, 3, 5, 1000, 10_000] {
            let mut splitter = Frames::default();
            let mut told: Vec<Vec<u8>> = Vec::new();
            for piece in stream.chunks(size) {
                splitter.put(piece);
                while let Some(frame) = splitter.take().unwrap() {
                    told.push(frame.to_vec());
                }
            }
            assert_eq!(told, frames, "in pieces of {size}");
            assert_eq!(splitter.start, splitter.bytes.len());
        }
    }

    #[test]
    fn a_frame_that_is_cut_off_does_not_come_out() {
        let stream = stream(&[b"first", b"second"]);
        for cut in 10..stream.len() {
            let mut splitter = Frames::default();
            splitter.put(&stream[..cut]);
            assert_eq!(splitter.take(), Ok(Some(&b"first"[..])));
            assert_eq!(splitter.take(), Ok(None));
            assert_eq!(splitter.bytes.len() - splitter.start, cut - 9);
        }
    }

    #[test]
    fn a_length_that_lies_is_an_error_before_anything_is_kept() {
        let mut splitter = Frames::default();
        splitter.put(&u32::MAX.to_be_bytes());
        assert_eq!(splitter.take(), Err(Odd::TooLarge(LARGEST)));
        let mut splitter = Frames::default();
        splitter.put(&(LARGEST as u32).to_be_bytes());
        assert_eq!(splitter.take(), Ok(None), "the largest is waited for");
    }

    #[test]
    fn room_for_a_large_frame_is_given_back() {
        let large = vec![1; 1 << 20];
        let mut splitter = Frames::default();
        splitter.put(&stream(&[&large]));
        assert_eq!(splitter.take().unwrap().map(<[u8]>::len), Some(large.len()));
        splitter.put(b"\0");
        assert!(splitter.bytes.capacity() < KEPT, "{}", splitter.bytes.capacity());
    }
}
