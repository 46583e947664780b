//! The guard against a table of addresses, odd spellings, and a second classifier written another way.

mod second;

use super::*;

const PUBLIC: AddressPolicy = AddressPolicy::PublicOnly;
const PRIVATE: AddressPolicy = AddressPolicy::AllowPrivate;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn special_ipv4_addresses_are_refused_up_to_both_edges_of_their_ranges() {
    for text in [
        "0.0.0.0",
        "0.0.0.1",
        "0.255.255.255",
        "10.0.0.0",
        "10.1.2.3",
        "10.255.255.255",
        "100.64.0.0",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.0",
        "127.0.0.1",
        "127.0.0.2",
        "127.255.255.255",
        "169.254.0.0",
        "169.254.169.254",
        "169.254.170.2",
        "169.254.255.255",
        "172.16.0.0",
        "172.20.10.1",
        "172.31.255.255",
        "192.0.0.0",
        "192.0.0.1",
        "192.0.0.170",
        "192.0.0.192",
        "192.0.0.255",
        "192.0.2.0",
        "192.0.2.1",
        "192.0.2.255",
        "192.88.99.0",
        "192.88.99.1",
        "192.88.99.255",
        "192.168.0.0",
        "192.168.0.1",
        "192.168.255.255",
        "198.18.0.0",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.0",
        "198.51.100.7",
        "198.51.100.255",
        "203.0.113.0",
        "203.0.113.9",
        "203.0.113.255",
        "224.0.0.0",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.0",
        "250.1.2.3",
        "255.255.255.254",
        "255.255.255.255",
        "168.63.129.16",
    ] {
        assert!(!PUBLIC.allows(ip(text)), "{text}");
    }
}

#[test]
fn public_ipv4_addresses_are_allowed_right_beside_the_special_ranges() {
    for text in [
        "1.0.0.0",
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
        "192.0.3.0",
        "192.88.98.255",
        "192.88.100.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
        "168.63.129.15",
        "168.63.129.17",
    ] {
        assert!(PUBLIC.allows(ip(text)), "{text}");
    }
}

#[test]
fn send_s1_special_ipv6_addresses_are_refused() {
    for text in [
        "::",
        "::1",
        "::2",
        "::7f00:1",
        "::8.8.8.8",
        "::ffff:0:0",
        "::ffff:0:8.8.8.8",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:168.63.129.16",
        "::ffff:192.168.1.1",
        "::ffff:255.255.255.255",
        "64:ff9b::",
        "64:ff9b::808:808",
        "64:ff9b::7f00:1",
        "64:ff9b:1::",
        "64:ff9b:1::808:808",
        "100::",
        "100::1",
        "100:0:0:1::1",
        "1fff:ffff::1",
        "2001::",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:4:112::1",
        "2001:10::1",
        "2001:20::1",
        "2001:30::1",
        "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff",
        "2001:db8::",
        "2001:db8::1",
        "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
        "2002::",
        "2002:7f00:1::",
        "2002:808:808::1",
        "2002:a00:1::",
        "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        "3fff::",
        "3fff::1",
        "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff",
        "4000::",
        "5f00::",
        "5f00::1",
        "8000::1",
        "fc00::",
        "fc00::1",
        "fd00::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fdff:ffff::1",
        "fe00::1",
        "fe80::",
        "fe80::1",
        "febf::1",
        "fec0::",
        "fec0::1",
        "feff::1",
        "ff00::",
        "ff02::1",
        "ff05::2",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ] {
        assert!(!PUBLIC.allows(ip(text)), "{text}");
    }
}

#[test]
fn public_ipv6_addresses_are_allowed() {
    for text in [
        "2000::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2001:db7:ffff::1",
        "2001:db9::1",
        "2003::1",
        "2606:4700:4700::1111",
        "2a00:1450:4001::1",
        "3ffe::1",
        "3fff:1000::1",
        "::ffff:8.8.8.8",
        "::ffff:1.1.1.1",
    ] {
        assert!(PUBLIC.allows(ip(text)), "{text}");
    }
}

#[test]
fn metadata_services_are_refused_under_both_policies() {
    for text in [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
        "::a9fe:a9fe",
    ] {
        assert_eq!(PUBLIC.check_address(ip(text)), Err(Refused::Metadata(ip(text))));
        assert_eq!(PRIVATE.check_address(ip(text)), Err(Refused::Metadata(ip(text))));
    }
    for name in ["metadata.google.internal", "METADATA.google.internal.", "metadata.goog", "instance-data"] {
        let url = format!("https://{name}/x");
        for policy in [PUBLIC, PRIVATE] {
            assert!(matches!(policy.parse_url(&url), Err(Refused::Host(_))), "{url}");
        }
    }
}

#[test]
fn with_private_addresses_allowed_everything_but_metadata_is() {
    for text in ["127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "169.254.1.1", "fc00::1", "fe80::1", "8.8.8.8"] {
        assert!(PRIVATE.allows(ip(text)), "{text}");
    }
    for url in ["http://127.0.0.1:9/x", "http://localhost:8080/", "https://[::1]:6379/", "https://example.com/"] {
        assert!(PRIVATE.parse_url(url).is_ok(), "{url}");
    }
}

#[test]
fn odd_spellings_of_private_addresses_are_refused() {
    for host in [
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "0177.1",
        "127.1",
        "127.0.1",
        "0",
        "0x0",
        "127.0.0.1.",
        "127.1.",
        "017700000001",
        "%31%32%37.0.0.1",
        "127%2E0%2e0.1",
        "１２７.０.０.１",
        "127。0。0。1",
        "①②⑦.⓪.⓪.①",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[0000:0000::0001]",
        "[::FFFF:A00:1]",
        "3232235777",
        "0xc0a80101",
        "0xA9FEA9FE",
        "2852039166",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[64:ff9b::127.0.0.1]",
        "[fe80::1]",
        "10.1",
        "0xa.1",
        "012.1",
        "192.168.257",
    ] {
        let url = format!("https://{host}/hook");
        let refused = PUBLIC.parse_url(&url);
        assert!(matches!(refused, Err(Refused::Address(_) | Refused::Metadata(_))), "{url}: {refused:?}");
    }
}

#[test]
fn spellings_that_are_no_host_at_all_are_refused() {
    for url in [
        "",
        "/",
        "example.com",
        "//example.com",
        "https://",
        "https:///",
        "https://256.256.256.256/",
        "https://0x100000000/",
        "https://[fe80::1%25eth0]/",
        "https://exa mple.com/",
        "https://1.2.3.4.5/",
        "https://[::1",
        "https://%00/",
    ] {
        assert!(PUBLIC.parse_url(url).is_err(), "{url}");
    }
}

#[test]
fn names_of_the_local_host_are_refused() {
    for host in ["localhost", "LOCALHOST", "localhost.", "a.localhost", "a.b.localhost.", "ｌocalhost", "%6cocalhost"]
    {
        let url = format!("https://{host}/");
        assert!(matches!(PUBLIC.parse_url(&url), Err(Refused::Host(_))), "{url}");
    }
}

#[test]
fn send_c9_valid_names_are_accepted() {
    for url in [
        "https://example.com/hook?token=x",
        "https://under_score.example.com/",
        "https://intranet/",
        "https://bücher.example/",
        "https://example.com:8443/",
        "https://notlocalhost/",
        "https://localhost.example.com/",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]/",
        "https://example.com./",
        "HTTPS://EXAMPLE.COM/",
    ] {
        assert!(PUBLIC.parse_url(url).is_ok(), "{url}");
    }
}

#[test]
fn other_schemes_user_info_fragments_and_ports_are_refused() {
    let refused = |url: &str| PUBLIC.parse_url(url).unwrap_err();
    for url in ["http://example.com/", "ftp://example.com/", "file:///etc/passwd", "data:,x", "ws://example.com/"] {
        assert!(matches!(refused(url), Refused::Scheme), "{url}");
    }
    for url in
        ["https://a:b@example.com/", "https://a@example.com/", "https://:b@example.com/", "https://ok@127.0.0.1/"]
    {
        assert!(matches!(refused(url), Refused::UserInfo), "{url}");
    }
    for url in ["https://example.com/#", "https://example.com/#x"] {
        assert!(matches!(refused(url), Refused::Fragment), "{url}");
    }
    for port in [1, 22, 25, 80, 6379, 8080, 65_535] {
        let url = format!("https://example.com:{port}/");
        assert_eq!(refused(&url), Refused::Port(port));
    }
    assert_eq!(PRIVATE.parse_url("http://127.0.0.1:0/"), Err(Refused::Port(0)));
    assert!(matches!(PRIVATE.parse_url("ftp://127.0.0.1/"), Err(Refused::Scheme)));
    let long = format!("https://example.com/{}", "x".repeat(MAX_URL_BYTES));
    assert_eq!(refused(&long), Refused::TooLong);
}

#[test]
fn refusals_repeat_nothing_of_path_or_query() {
    for url in [
        "https://127.0.0.1/geheim?k=geheim",
        "https://a:geheim@h/",
        "https://h/geheim#x",
        "https://h:1/geheim",
        "geheim",
    ] {
        let refused = PUBLIC.parse_url(url).unwrap_err();
        assert!(!refused.to_string().contains("geheim"), "{refused}");
    }
}
