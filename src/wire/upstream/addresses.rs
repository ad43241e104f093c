//! Which addresses a service may have that a call names. Such a name is somebody else's, and may lead to what only this
//! host reaches: its ports, its network, and the credentials that clouds hand out at an address of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// No addresses of public services: all of the special-purpose registry of IPv4, multicast, what is reserved, and where
/// the machines of Azure ask for their settings.
const SPECIAL: [([u8; 4], u8); 18] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([168, 63, 129, 16], 32),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 31, 196, 0], 24),
    ([192, 52, 193, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([192, 175, 48, 0], 24),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 3),
];

/// Addresses whose first bits are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    first: IpAddr,
    bits: u8,
}

impl AddressRange {
    fn has(self, address: IpAddr) -> bool {
        let differ = from_left(self.first) ^ from_left(address);
        let differ = differ.checked_shr(128 - u32::from(self.bits));
        self.first.is_ipv4() == address.is_ipv4() && differ.unwrap_or(0) == 0
    }
}

impl FromStr for AddressRange {
    /// What would be right.
    type Err = String;

    fn from_str(text: &str) -> Result<AddressRange, String> {
        let (first, bits) = text.split_once('/').unwrap_or((text, ""));
        let range = first.parse::<IpAddr>().ok().and_then(|first| {
            let most = if first.is_ipv4() { 32 } else { 128 };
            let bits = match text.contains('/') {
                true => bits.parse().ok().filter(|bits| *bits <= most)?,
                false => most,
            };
            let range = AddressRange { first, bits };
            // What would stand behind the bits means nothing, or a mistake.
            let rest = from_left(first).checked_shl(bits.into()).unwrap_or(0);
            (rest == 0).then_some(range)
        });
        range.ok_or_else(|| "write an address or a range of them, such as \"10.1.0.0/16\"".into())
    }
}

/// The bits of an address, from the highest on.
fn from_left(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Whether a call may go to this address: it is public, or in one of these ranges.
pub(super) fn is_open(allow: &[AddressRange], address: IpAddr) -> bool {
    // One of IPv4 may be written as one of IPv6, or be reached by one (NAT64).
    let inner = match address.to_canonical() {
        IpAddr::V6(of) if matches!(of.segments(), [0x64, 0xff9b, 0, 0, 0, 0, ..]) => {
            let [.., a, b, c, d] = of.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        inner => inner,
    };
    let is_public = match inner {
        IpAddr::V4(_) => !SPECIAL.iter().any(|(first, bits)| {
            let (first, bits) = (IpAddr::from(*first), *bits);
            AddressRange { first, bits }.has(inner)
        }),
        // What is given out, without what protocols and texts use, Teredo and 6to4.
        IpAddr::V6(of) => match of.segments() {
            [0x2001, 0..0x200 | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..0x1000, ..] => false,
            [first, ..] => (0x2000..0x4000).contains(&first),
        },
    };
    is_public || allow.iter().any(|of| of.has(inner) || of.has(address))
}
