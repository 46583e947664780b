//! The same verdicts from comparisons of octets and groups, with no tables and no masks; compared over many addresses.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

#[test]
fn a_second_classifier_agrees_on_many_addresses() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for step in 0..400_000_u32 {
        let noise = next();
        // Every /16 of IPv4, random below; and the same address in its IPv6 wrappings.
        let v4 = Ipv4Addr::from((step << 16) | u32::try_from(noise & 0xffff).unwrap());
        assert_eq!(PUBLIC.allows(v4.into()), by_octets(v4), "{v4}");
        assert_eq!(PUBLIC.allows(v4.to_ipv6_mapped().into()), by_octets(v4), "{v4}");
        let [a, b, c, d] = v4.octets().map(u16::from);
        let (high, low) = (a << 8 | b, c << 8 | d);
        assert!(!PUBLIC.allows(Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low).into()));
        assert!(!PUBLIC.allows(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into()));
        assert!(!PUBLIC.allows(Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 0).into()));
        // Every leading /16 of IPv6, then small and random second groups, where the special ranges are.
        let first = u16::try_from(step & 0xffff).unwrap();
        let first = if step % 3 == 0 { 0x2000 | (first & 3) } else { first };
        let other = u16::try_from(noise >> 48).unwrap();
        let other = if step % 2 == 0 { other & 0x0fff } else { other };
        let rest = u128::from(noise) << 32;
        let bits = u128::from(first) << 112 | u128::from(other) << 96 | (rest & ((1 << 96) - 1));
        let v6 = Ipv6Addr::from(bits);
        assert_eq!(PUBLIC.allows(v6.into()), by_groups(v6), "{v6}");
    }
    for first in 0..=u16::MAX {
        for other in [0, 0xdb8, 0x1ff, 0x200, 0xfff, 0x1000, 0xffff] {
            let v6 = Ipv6Addr::new(first, other, 0, 0, 0, 0, 0, 9);
            assert_eq!(PUBLIC.allows(v6.into()), by_groups(v6), "{v6}");
        }
    }
}

fn by_octets(address: Ipv4Addr) -> bool {
    if address.octets() == [168, 63, 129, 16] {
        return false;
    }
    match address.octets() {
        [0 | 10 | 127, ..] => false,
        [100, b, ..] => !(64..=127).contains(&b),
        [169, 254, ..] | [192, 168, ..] => false,
        [172, b, ..] => !(16..=31).contains(&b),
        [192, 0, 0 | 2, _] | [192, 88, 99, _] => false,
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => false,
        [a, ..] => a < 224,
    }
}

fn by_groups(address: Ipv6Addr) -> bool {
    let groups = address.segments();
    if groups[..5] == [0; 5] && groups[5] == 0xffff {
        let [.., a, b, c, d] = address.octets();
        return by_octets(Ipv4Addr::new(a, b, c, d));
    }
    if [[0, 0, 0x5e, 0xfe], [2, 0, 0x5e, 0xfe]].contains(&[8, 9, 10, 11].map(|at: usize| address.octets()[at])) {
        return false;
    }
    let (first, other) = (groups[0], groups[1]);
    match first {
        0x2001 => other >= 0x200 && other != 0xdb8,
        0x2002 => false,
        0x3fff => other >= 0x1000,
        0x2000..=0x3ffe => true,
        _ => false,
    }
}
