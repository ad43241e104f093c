//! Which addresses a service may have that a call names. Such a name is somebody else's, and may lead to what only this
//! host reaches: its ports, its network, and the credentials that clouds hand out at an address of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// Where no public service is: the special-purpose registry of IPv4, multicast, what is reserved, and where machines at
/// Azure ask for their settings. Of what IPv6 has given out: protocols' own with Teredo, examples, and 6to4.
const SPECIAL: &str = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16 169.254.0.0/16 172.16.0.0/12 \
    192.0.0.0/24 192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 \
    198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 2001::/23 2001:db8::/32 2002::/16 3fff::/20";
/// What IPv6 has given out, and where all of IPv4 is reached by it (NAT64).
const GIVEN_OUT: &str = "2000::/3";
const NAT64: &str = "64:ff9b::/96";

/// Addresses whose first bits are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    first: IpAddr,
    bits: u32,
}

/// Where clouds hand out the credentials of a machine: AWS, Azure, GCP and most others; Azure; AWS by IPv6.
const METADATA: &str = "169.254.169.254 168.63.129.16 fd00:ec2::254";

impl AddressRange {
    /// Whether an address from which clouds hand out credentials is one of them.
    pub fn has_metadata(self) -> bool {
        let mut all = METADATA.split(' ').filter_map(|one| one.parse().ok());
        all.any(|address| self.has(address))
    }

    fn has(self, address: IpAddr) -> bool {
        let differ = from_left(self.first) ^ from_left(address);
        let differ = differ.checked_shr(128 - self.bits).unwrap_or(0);
        self.first.is_ipv4() == address.is_ipv4() && differ == 0
    }
}

impl FromStr for AddressRange {
    /// What would be right.
    type Err = String;

    fn from_str(text: &str) -> Result<AddressRange, String> {
        let (first, bits) = match text.split_once('/') {
            Some((first, bits)) => (first, Some(bits)),
            None => (text, None),
        };
        let read = first.parse().ok().and_then(|first: IpAddr| {
            let most = if first.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Ok(most), str::parse).ok();
            let bits = bits.filter(|bits| *bits <= most)?;
            // What stands behind those bits would mean nothing.
            let rest = from_left(first).checked_shl(bits).unwrap_or(0);
            (rest == 0).then_some(AddressRange { first, bits })
        });
        read.ok_or_else(|| "write an address or a range of them, such as \"10.1.0.0/16\"".into())
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
    let of = |ranges: &str, address| {
        let mut ranges = ranges.split(' ').filter_map(|range| range.parse().ok());
        ranges.any(|range: AddressRange| range.has(address))
    };
    // One of IPv4 may be written as one of IPv6.
    let inner = match address.to_canonical() {
        IpAddr::V6(by) if of(NAT64, by.into()) => {
            let [.., a, b, c, d] = by.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        inner => inner,
    };
    let is_public = !of(SPECIAL, inner) && (inner.is_ipv4() || of(GIVEN_OUT, inner));
    is_public || allow.iter().any(|of| of.has(inner) || of.has(address))
}
