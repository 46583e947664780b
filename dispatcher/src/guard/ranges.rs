//! Which IP addresses are public.
//!
//! Place in the path: asked by `guard` for literals, and for every address that a name resolves to.
//! Invariants: pure; an IPv4 address written as IPv4-mapped IPv6 gets the verdict of the IPv4 address; in IPv6 only
//! global unicast is public, so that ranges assigned later are refused until they are known here.
//! Sources: IANA's special-purpose registries for IPv4 and IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether the address is public: routed in the Internet, and not set apart for another use.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|range| range.contains(address)),
        IpAddr::V6(address) => {
            GLOBAL_UNICAST.contains(address)
                && !is_isatap(address)
                && !SPECIAL_V6.iter().any(|range| range.contains(address))
        }
    }
}

/// Whether the address, or the IPv4 address that it carries inside, is a cloud provider's metadata service.
pub(super) fn is_metadata(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => METADATA_V4.contains(&address),
        IpAddr::V6(address) => {
            METADATA_V6.contains(&address) || embedded(address).is_some_and(|inner| METADATA_V4.contains(&inner))
        }
    }
}

/// The IPv4 address that a translated or tunnelled IPv6 address leads to: NAT64, 6to4, ISATAP,
/// IPv4-compatible.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, .., g, h] = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d] {
        [0x2002, high, low, _] => Some(join(high, low)),
        _ if is_isatap(address) => Some(join(g, h)),
        [0x0064, 0xff9b, _, _] | [0, 0, 0, 0] => Some(join(g, h)),
        _ => None,
    }
}

/// Whether the lower half tunnels to an IPv4 address inside a site (RFC 5214), whatever network stands before it.
fn is_isatap(address: Ipv6Addr) -> bool {
    let [.., e, f, _, _] = address.segments();
    matches!(e, 0x0000 | 0x0200) && f == 0x5efe
}

struct RangeV4(Ipv4Addr, u32);

impl RangeV4 {
    const fn contains(&self, address: Ipv4Addr) -> bool {
        (address.to_bits() ^ self.0.to_bits()) >> (32 - self.1) == 0
    }
}

struct RangeV6(Ipv6Addr, u32);

impl RangeV6 {
    const fn contains(&self, address: Ipv6Addr) -> bool {
        (address.to_bits() ^ self.0.to_bits()) >> (128 - self.1) == 0
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u32) -> RangeV4 {
    RangeV4(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, c: u16, bits: u32) -> RangeV6 {
    RangeV6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), bits)
}

const SPECIAL_V4: [RangeV4; 15] = [
    v4(0, 0, 0, 0, 8),       // this network
    v4(10, 0, 0, 0, 8),      // private
    v4(100, 64, 0, 0, 10),   // shared by carriers
    v4(127, 0, 0, 0, 8),     // loopback
    v4(169, 254, 0, 0, 16),  // link local
    v4(172, 16, 0, 0, 12),   // private
    v4(192, 0, 0, 0, 24),    // protocol assignments
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 88, 99, 0, 24),  // 6to4 relays, retired
    v4(192, 168, 0, 0, 16),  // private
    v4(198, 18, 0, 0, 15),   // benchmarks
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
    v4(224, 0, 0, 0, 4),     // multicast
    v4(240, 0, 0, 0, 4),     // reserved, broadcast
];

const GLOBAL_UNICAST: RangeV6 = v6(0x2000, 0, 0, 3);

const SPECIAL_V6: [RangeV6; 4] = [
    v6(0x2001, 0, 0, 23),     // protocol assignments: Teredo, ORCHID, benchmarks
    v6(0x2001, 0xdb8, 0, 32), // documentation
    v6(0x2002, 0, 0, 16),     // 6to4
    v6(0x3fff, 0, 0, 20),     // documentation
];

const METADATA_V4: [Ipv4Addr; 6] = [
    Ipv4Addr::new(169, 254, 169, 254), // most clouds
    Ipv4Addr::new(169, 254, 170, 2),   // AWS containers
    Ipv4Addr::new(169, 254, 170, 23),  // AWS pod identity
    Ipv4Addr::new(168, 63, 129, 16),   // Azure, looks public
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle
];

const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), // AWS
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),  // AWS pod identity
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),  // Google
];
