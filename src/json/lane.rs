//! Sixteen bytes of a text looked at together.

use wide::u8x16;

/// How many bytes are looked at together.
pub(super) const LANE: usize = 16;

/// Sixteen bytes. Findings are bits, one for each byte, with the first byte lowest.
#[derive(Clone, Copy)]
pub(super) struct ByteLane(u8x16);

impl ByteLane {
    #[inline]
    pub(super) fn of(bytes: &[u8; LANE]) -> ByteLane {
        ByteLane(u8x16::new(*bytes))
    }

    /// Where a string ends or must not go on: at a quote, a backslash, a control character below a blank.
    /// [`LANE`]: nowhere.
    #[inline]
    pub(super) fn stop(self) -> usize {
        let controls = self.0.simd_eq(self.0.min(u8x16::splat(b' ' - 1)));
        let stops = self.same(b'"') | self.same(b'\\') | controls;
        first(stops.to_bitmask())
    }

    /// Where something beyond ASCII begins.
    #[inline]
    pub(super) fn beyond(self) -> usize {
        first(self.0.to_bitmask())
    }

    #[inline]
    fn same(self, byte: u8) -> u8x16 {
        self.0.simd_eq(u8x16::splat(byte))
    }
}

/// The place of the lowest bit.
#[inline]
fn first(bits: u32) -> usize {
    (bits | 1 << LANE).trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_found_in_every_place() {
        for byte in 0..=u8::MAX {
            for place in 0..LANE {
                // What precedes is nothing special, and what follows does not count.
                for (before, after) in [(b' ', b'"'), (b'!', 0x80), (0x7f, b'~'), (b'#', 0)] {
                    let mut bytes = [before; LANE];
                    bytes[place..].fill(after);
                    bytes[place] = byte;
                    let place_of = |wanted: fn(u8) -> bool| {
                        let found = bytes.iter().position(|byte| wanted(*byte));
                        found.unwrap_or(LANE)
                    };
                    let lane = ByteLane::of(&bytes);
                    let stops = |byte| byte < b' ' || matches!(byte, b'"' | b'\\');
                    assert_eq!(lane.stop(), place_of(stops), "{bytes:?}");
                    assert_eq!(lane.beyond(), place_of(|byte| byte > 0x7f), "{bytes:?}");
                }
            }
        }
    }
}
