//! The frames of a watch: of protocol buffers four bytes that say how long it is, big-endian, before each of them; of JSON
//! one line each.

use super::Odd;

/// The largest object that is taken. A pod is at most some 3 MiB, which is what the API server takes of a client.
pub(in crate::cluster) const LARGEST: usize = 4 << 20;

/// A buffer that has been larger is given back when it is empty: most frames are some 10 KiB.
const KEPT: usize = 64 << 10;

/// Bytes that came and were not read yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffer {
    /// What came; before `start` it was read.
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// Another piece came.
    pub(super) fn put(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
        self.bytes.extend_from_slice(piece);
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// So many bytes were read, of those that are there.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// The last bytes that were read.
    pub(super) fn last(&self, bytes: usize) -> &[u8] {
        &self.bytes[self.start - bytes..self.start]
    }
}

/// Takes frames out of a stream of bytes, in whatever pieces these come.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    buffer: Buffer,
    /// They are lines.
    lines: bool,
    /// So far no line ends in what was not read.
    searched: usize,
}

impl Frames {
    /// Frames that are lines.
    pub(in crate::cluster) fn lines() -> Self {
        Self { lines: true, ..Self::default() }
    }

    /// Another piece came. All frames that are there should have been taken: what was not is held.
    pub fn put(&mut self, piece: &[u8]) {
        self.buffer.put(piece);
    }

    /// The next frame that is there; `None` if that is not all there yet.
    ///
    /// # Errors
    /// It is larger than anything that the API server has; then no more comes of the stream.
    pub fn take(&mut self) -> Result<Option<&[u8]>, Odd> {
        let found = if self.lines { self.line() } else { self.counted() };
        let Some((before, length, after)) = found? else { return Ok(None) };
        self.buffer.skip(before + length + after);
        let frame = self.buffer.last(length + after);
        Ok(Some(&frame[..length]))
    }

    /// Bytes before the next frame, of it, and after it.
    fn counted(&self) -> Result<Option<(usize, usize, usize)>, Odd> {
        let Some((length, rest)) = self.buffer.rest().split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > LARGEST {
            return Err(Odd::TooLarge(LARGEST));
        }
        Ok((rest.len() >= length).then_some((size_of::<u32>(), length, 0)))
    }

    /// Likewise, of lines.
    fn line(&mut self) -> Result<Option<(usize, usize, usize)>, Odd> {
        let rest = self.buffer.rest();
        let end = rest[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = end.map_or(rest.len(), |end| self.searched + end);
        if length > LARGEST {
            return Err(Odd::TooLarge(LARGEST));
        }
        self.searched = if end.is_some() { 0 } else { length };
        Ok(end.map(|_| (0, length, 1)))
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
        let lines = frames.map(|frame| [frame, b"\n"].concat()).concat();
        for (stream, empty) in [(stream(&frames), Frames::default()), (lines, Frames::lines())] {
            for size in [1, 2, 3, 5, 1000, 10_000] {
                let mut splitter = empty.clone();
                let mut told: Vec<Vec<u8>> = Vec::new();
                for piece in stream.chunks(size) {
                    splitter.put(piece);
                    while let Some(frame) = splitter.take().unwrap() {
                        told.push(frame.to_vec());
                    }
                }
                assert_eq!(told, frames, "in pieces of {size}");
                assert_eq!(splitter.buffer.rest(), b"");
            }
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
            assert_eq!(splitter.buffer.rest().len(), cut - 9);
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
    fn a_line_without_an_end_is_an_error_in_time() {
        let mut splitter = Frames::lines();
        splitter.put(&vec![b'x'; LARGEST]);
        assert_eq!(splitter.take(), Ok(None));
        splitter.put(b"x");
        assert_eq!(splitter.take(), Err(Odd::TooLarge(LARGEST)));
    }

    #[test]
    fn room_for_a_large_frame_is_given_back() {
        let large = vec![1; 1 << 20];
        let mut splitter = Frames::default();
        splitter.put(&stream(&[&large]));
        assert_eq!(splitter.take().unwrap().map(<[u8]>::len), Some(large.len()));
        splitter.put(b"\0");
        assert!(splitter.buffer.bytes.capacity() < KEPT, "{}", splitter.buffer.bytes.capacity());
    }
}
