//! The frames of a watch: for protocol buffers each has a four-byte big-endian length before it, for JSON
//! each is one line.

use super::protobuf::DecodeError;

/// Maximum size of an object. A pod has at most some 3 MiB, the API server's limit for requests.
pub(super) const MAX_OBJECT_BYTES: usize = 4 << 20;

/// An empty buffer with a larger capacity is freed: most frames have some 10 KiB.
const MAX_IDLE_CAPACITY: usize = 64 << 10;

/// Bytes received but not yet consumed.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffer {
    /// The received bytes; those before `start` are consumed.
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > MAX_IDLE_CAPACITY {
            self.bytes = Vec::new();
        }
        self.bytes.extend_from_slice(piece);
    }

    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Returns the last `bytes` consumed bytes.
    pub(super) fn last(&self, bytes: usize) -> &[u8] {
        &self.bytes[self.start - bytes..self.start]
    }
}

/// Splits a byte stream into frames, whatever its chunks are.
#[derive(Clone, Debug, Default)]
pub struct FrameSplitter {
    buffer: Buffer,
    /// Frames are lines.
    is_lines: bool,
    /// This many unconsumed bytes are known to contain no line end.
    searched: usize,
}

impl FrameSplitter {
    pub(super) fn lines() -> Self {
        Self { is_lines: true, ..Self::default() }
    }

    /// Appends a chunk. Take all complete frames first: the rest is buffered.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.push(piece);
    }

    /// Returns the next frame; `None` if it is incomplete.
    ///
    /// # Errors
    /// It is larger than any object of the API server; the stream is then unusable.
    pub fn take(&mut self) -> Result<Option<&[u8]>, DecodeError> {
        let found = if self.is_lines { self.line() } else { self.length_delimited() };
        let Some((before, length, after)) = found? else { return Ok(None) };
        self.buffer.skip(before + length + after);
        let frame = self.buffer.last(length + after);
        Ok(Some(&frame[..length]))
    }

    /// Returns the number of bytes before the next frame, in it, and after it.
    fn length_delimited(&self) -> Result<Option<(usize, usize, usize)>, DecodeError> {
        let Some((length, rest)) = self.buffer.rest().split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_OBJECT_BYTES {
            return Err(DecodeError::TooLarge(MAX_OBJECT_BYTES));
        }
        Ok((rest.len() >= length).then_some((size_of::<u32>(), length, 0)))
    }

    /// The same for lines.
    fn line(&mut self) -> Result<Option<(usize, usize, usize)>, DecodeError> {
        let rest = self.buffer.rest();
        let end = rest[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = end.map_or(rest.len(), |end| self.searched + end);
        if length > MAX_OBJECT_BYTES {
            return Err(DecodeError::TooLarge(MAX_OBJECT_BYTES));
        }
        self.searched = if end.is_some() { 0 } else { length };
        Ok(end.map(|_| (0, length, 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Buffer {
        pub(in crate::cluster) fn capacity(&self) -> usize {
            self.bytes.capacity()
        }
    }

    /// Encodes frames with their lengths.
    fn stream(frames: &[&[u8]]) -> Vec<u8> {
        frames.iter().flat_map(|frame| [&(frame.len() as u32).to_be_bytes()[..], frame].concat()).collect()
    }

    #[test]
    fn frames_are_split_whatever_the_chunks() {
        let long = vec![7; 3000];
        let frames: [&[u8]; 5] = [b"a", b"", b"some more", &long, b"z"];
        let lines = frames.map(|frame| [frame, b"\n"].concat()).concat();
        let delimited = (stream(&frames), FrameSplitter::default());
        for (stream, empty) in [delimited, (lines, FrameSplitter::lines())] {
            for size in [1, 2, 3, 5, 1000, 10_000] {
                let mut splitter = empty.clone();
                let mut taken: Vec<Vec<u8>> = Vec::new();
                for piece in stream.chunks(size) {
                    splitter.push(piece);
                    while let Some(frame) = splitter.take().unwrap() {
                        taken.push(frame.to_vec());
                    }
                }
                assert_eq!(taken, frames, "in chunks of {size}");
                assert_eq!(splitter.buffer.rest(), b"");
            }
        }
    }

    #[test]
    fn an_incomplete_frame_is_not_returned() {
        let stream = stream(&[b"first", b"second"]);
        for cut in 10..stream.len() {
            let mut splitter = FrameSplitter::default();
            splitter.push(&stream[..cut]);
            assert_eq!(splitter.take(), Ok(Some(&b"first"[..])));
            assert_eq!(splitter.take(), Ok(None));
            assert_eq!(splitter.buffer.rest().len(), cut - 9);
        }
    }

    #[test]
    fn an_impossible_length_is_an_error_before_anything_is_buffered() {
        let mut splitter = FrameSplitter::default();
        splitter.push(&u32::MAX.to_be_bytes());
        assert_eq!(splitter.take(), Err(DecodeError::TooLarge(MAX_OBJECT_BYTES)));
        let mut splitter = FrameSplitter::default();
        splitter.push(&(MAX_OBJECT_BYTES as u32).to_be_bytes());
        assert_eq!(splitter.take(), Ok(None), "the largest is accepted");
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let mut splitter = FrameSplitter::lines();
        splitter.push(&vec![b'x'; MAX_OBJECT_BYTES]);
        assert_eq!(splitter.take(), Ok(None));
        splitter.push(b"x");
        assert_eq!(splitter.take(), Err(DecodeError::TooLarge(MAX_OBJECT_BYTES)));
    }

    #[test]
    fn the_memory_of_a_large_frame_is_freed() {
        let large = vec![1; 1 << 20];
        let mut splitter = FrameSplitter::default();
        splitter.push(&stream(&[&large]));
        assert_eq!(splitter.take().unwrap().map(<[u8]>::len), Some(large.len()));
        splitter.push(b"\0");
        assert!(splitter.buffer.bytes.capacity() < MAX_IDLE_CAPACITY, "{}", splitter.buffer.bytes.capacity());
    }
}
