//! A key's state as bytes, for stores that keep it elsewhere. Little endian, without padding; Redis
//! scripts read and write the same (`src/store/redis/core.lua`).
//!
//! Times have seven bytes. What is later than the year 2255 is never, as far as stores can tell: up to
//! there a script's numbers are exact.

use super::time::Timestamp;

/// The last time that is told apart.
const NEVER: u64 = 1 << 53;

/// Bytes being written.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A number of up to seven bytes; larger ones become the largest.
    pub(super) fn long(&mut self, value: u64) {
        let bytes = value.min(NEVER).to_le_bytes();
        self.0.extend(bytes.into_iter().take(7));
    }

    pub(super) fn time(&mut self, value: Timestamp) {
        self.long(value.0);
    }

    /// A text of at most 65,535 bytes.
    pub(super) fn text(&mut self, text: &str) {
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.u16(length);
        self.0.extend(text.bytes().take(length.into()));
    }
}

/// Bytes being read.
pub(super) struct PackedReader<'a>(pub(super) &'a [u8]);

impl<'a> PackedReader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// Up to eight bytes as a number.
    fn number(&mut self, count: usize) -> Option<u64> {
        let bytes = self.take(count)?.iter().rev();
        Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        u8::try_from(self.number(1)?).ok()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        u16::try_from(self.number(2)?).ok()
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        u32::try_from(self.number(4)?).ok()
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.number(7)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = self.u16()?;
        std::str::from_utf8(self.take(length.into())?).ok()
    }

    pub(super) fn time(&mut self) -> Option<Timestamp> {
        let time = self.long()?;
        Some(if time >= NEVER {
            Timestamp::NEVER
        } else {
            Timestamp(time)
        })
    }
}
