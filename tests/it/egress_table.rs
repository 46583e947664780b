//! URLs of endpoints and what the guard says to each: the start of the refusal, or nothing where it is allowed. `{p}`
//! stands for an open port behind which a trap listens.

/// A URL and the start of its refusal.
pub type Case = (&'static str, Option<&'static str>);

const IP: Option<&str> = Some("blocked_ip");
const URL: Option<&str> = Some("blocked_url");
const PORT: Option<&str> = Some("blocked_port");
const HOST: Option<&str> = Some("blocked_host");

#[rustfmt::skip]
pub const CASES: &[Case] = &[
    // IPv4 for special purposes, at both edges.
    ("https://0.0.0.0:{p}/", IP), ("https://0.255.255.255/", IP), ("https://10.0.0.0/", IP), ("https://10.255.255.255/", IP),
    ("https://100.64.0.0/", IP), ("https://100.127.255.255/", IP), ("https://127.0.0.1:{p}/", IP),
    ("https://127.0.0.2:{p}/", IP), ("https://127.255.255.255:{p}/", IP), ("https://169.254.0.1/", IP),
    ("https://169.254.169.254/", IP), ("https://169.254.170.2/", IP), ("https://172.16.0.0/", IP), ("https://172.31.255.255/", IP),
    ("https://192.0.0.0/", IP), ("https://192.0.0.8/", IP), ("https://192.0.0.170/", IP), ("https://192.0.2.1/", IP),
    ("https://192.88.99.1/", IP), ("https://192.168.0.0/", IP), ("https://192.168.255.255/", IP), ("https://198.18.0.0/", IP),
    ("https://198.19.255.255/", IP), ("https://198.51.100.1/", IP), ("https://203.0.113.1/", IP), ("https://224.0.0.1/", IP),
    ("https://239.255.255.250/", IP), ("https://240.0.0.1/", IP), ("https://255.255.255.255/", IP), ("https://100.100.100.200/", IP), ("https://168.63.129.16/", IP),
    // Their neighbours are public.
    ("https://9.255.255.255/", None), ("https://11.0.0.0/", None), ("https://100.63.255.255/", None), ("https://100.128.0.0/", None),
    ("https://126.255.255.255/", None), ("https://128.0.0.1/", None), ("https://172.15.255.255/", None), ("https://172.32.0.0/", None),
    ("https://192.167.255.255/", None), ("https://192.169.0.0/", None), ("https://198.17.255.255/", None), ("https://198.20.0.0/", None),
    ("https://223.255.255.254/", None), ("https://8.8.8.8/", None), ("https://8.8.8.8:8443/", None),
    // Other spellings of 127.0.0.1 and its like.
    ("https://2130706433:{p}/", IP), ("https://0x7f000001:{p}/", IP), ("https://0x7F000001:{p}/", IP), ("https://017700000001:{p}/", IP),
    ("https://0177.0.0.1:{p}/", IP), ("https://0x7f.0.0.1:{p}/", IP), ("https://0x7f.1:{p}/", IP), ("https://127.1:{p}/", IP),
    ("https://127.0.1:{p}/", IP), ("https://127.0x0.0.01:{p}/", IP), ("https://0177.0x0.0.1:{p}/", IP), ("https://127.0.0.1.:{p}/", IP),
    ("https://2130706433.:{p}/", IP), ("https://0:{p}/", IP), ("https://0x0:{p}/", IP), ("https://00000177.0.0.1:{p}/", IP),
    ("https://3232235521/", IP), ("https://0xc0a80001/", IP), ("https://192.168.1/", IP), ("https://10.1/", IP),
    ("https://2852039166/", IP), ("https://0xa9fea9fe/", IP), ("https://0251.0376.0251.0376/", IP), ("https://169.254.43518/", IP),
    ("https://256.256.256.256/", URL), ("https://127.0.0.256/", URL), ("https://1.2.3.4.5/", URL), ("https://4294967296/", URL),
    ("https://0x100000000/", URL), ("https://08.0.0.1/", URL), ("https://127.0.0.0x/", IP), ("https://127..0.1/", URL),
    ("https://127.0.0.1../", URL), ("https://localhost../", URL), ("https://.localhost/", URL), ("https://a..example.com/", URL), ("https://-127.0.0.1/", URL),
    // Percent-encoding, fullwidth and other digits that are mapped to ASCII.
    ("https://%31%32%37.0.0.1:{p}/", IP), ("https://127%2e0%2e0%2e1:{p}/", IP), ("https://%6c%6f%63%61%6c%68%6f%73%74:{p}/", HOST),
    ("https://127.0.0.1%2f@8.8.8.8/", URL), ("https://127.0.0.1%00.example.com/", URL), ("https://127.0.0.1%20/", URL),
    ("https://１２７.０.０.１:{p}/", IP), ("https://127。0。0。1:{p}/", IP), ("https://127．0．0．1:{p}/", IP),
    ("https://127｡0｡0｡1:{p}/", IP), ("https://①②⑦.⓪.⓪.①:{p}/", IP), ("https://𝟏𝟐𝟕.𝟎.𝟎.𝟏:{p}/", IP),
    ("https://¹²⁷.⁰.⁰.¹:{p}/", IP), ("https://ｌｏｃａｌｈｏｓｔ:{p}/", HOST), ("https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{p}/", HOST),
    ("https://local\u{ad}host:{p}/", HOST), ("https://local\u{200b}host:{p}/", HOST), ("https://127.0.0.\u{ad}1:{p}/", IP),
    ("https://xn--a/", URL),
    // IPv6 for special purposes.
    ("https://[::]:{p}/", IP), ("https://[::1]:{p}/", IP), ("https://[0:0:0:0:0:0:0:1]:{p}/", IP), ("https://[0000::0001]:{p}/", IP),
    ("https://[::ffff:127.0.0.1]:{p}/", IP), ("https://[::ffff:7f00:1]:{p}/", IP), ("https://[::FFFF:127.0.0.1]:{p}/", IP),
    ("https://[0:0:0:0:0:ffff:7f00:1]:{p}/", IP), ("https://[::ffff:10.0.0.1]/", IP), ("https://[::ffff:169.254.169.254]/", IP),
    ("https://[::127.0.0.1]/", IP), ("https://[::7f00:1]/", IP), ("https://[::10.0.0.1]/", IP), ("https://[::8.8.8.8]/", IP),
    ("https://[::ffff:0:127.0.0.1]/", IP), ("https://[64:ff9b::127.0.0.1]/", IP), ("https://[64:ff9b::a9fe:a9fe]/", IP),
    ("https://[64:ff9b::10.0.0.1]/", IP), ("https://[64:ff9b:1::1]/", IP), ("https://[64:ff9b:1:ffff::10.0.0.1]/", IP),
    ("https://[2002:7f00:1::]/", IP), ("https://[2002:a9fe:a9fe::1]/", IP), ("https://[2002:c0a8:1::1]/", IP),
    ("https://[2001::1]/", IP), ("https://[2001:0:4136:e378:8000:63bf:80ff:fffe]/", IP), ("https://[2001:2::1]/", IP),
    ("https://[2001:10::1]/", IP), ("https://[2001:db8::1]/", IP), ("https://[3fff::1]/", IP), ("https://[5f00::1]/", IP),
    ("https://[100::1]/", IP), ("https://[100:0:0:1::1]/", IP), ("https://[fc00::1]/", IP), ("https://[fd00::1]/", IP),
    ("https://[fdff:ffff::1]/", IP), ("https://[fd00:ec2::254]/", IP), ("https://[fe80::1]/", IP), ("https://[febf::1]/", IP),
    ("https://[fec0::1]/", IP), ("https://[feff::1]/", IP), ("https://[ff02::1]/", IP), ("https://[ff0e::1]/", IP),
    ("https://[fe80::5efe:10.0.0.1]/", IP), ("https://[fe80::200:5efe:127.0.0.1]/", IP), ("https://[2606:4700::5efe:10.0.0.1]/", IP), ("https://[2606:4700::200:5efe:169.254.169.254]/", IP),
    ("https://[2606:4700::5eff:10.0.0.1]/", None),
    ("https://[4000::1]/", IP), ("https://[fe80::1%25eth0]/", URL), ("https://[fe80::1%eth0]/", URL), ("https://[::1%25lo]/", URL),
    ("https://[::1/", URL), ("https://::1/", URL), ("https://[127.0.0.1]/", URL), ("https://[::1].:{p}/", URL),
    ("https://[2606:4700::1111]/", None), ("https://[2620:fe::fe]/", None), ("https://[2a00:1450::1]/", None),
    // Names that lead inside.
    ("https://localhost:{p}/", HOST), ("https://LOCALHOST:{p}/", HOST), ("https://localhost.:{p}/", HOST),
    ("https://a.localhost:{p}/", HOST), ("https://a.b.LocalHost.:{p}/", HOST), ("https://metadata.google.internal/", HOST),
    ("https://metadata.google.internal./", HOST), ("https://METADATA/", HOST), ("https://instance-data/", HOST),
    // Users, fragments, slashes: what is read as the host is what is judged.
    ("https://good.example@127.0.0.1:{p}/", URL), ("https://a:b@127.0.0.1:{p}/", URL), ("https://good.example:443@127.0.0.1:{p}/", URL),
    ("https://8.8.8.8@[::1]:{p}/", URL), ("https://@127.0.0.1:{p}/", IP), ("https://:@127.0.0.1:{p}/", IP), ("https://a@8.8.8.8/", URL),
    ("https://8.8.8.8/#frag", URL), ("https://127.0.0.1:{p}#@8.8.8.8/", URL), ("https://127.0.0.1:{p}?@8.8.8.8/", IP),
    ("https://127.0.0.1:{p}\\@8.8.8.8/", IP), ("https:\\\\127.0.0.1:{p}/", IP), ("https:/127.0.0.1:{p}/", IP), ("https:127.0.0.1:{p}/", IP),
    ("https:///127.0.0.1:{p}/", IP), ("https:////127.0.0.1:{p}/", IP), ("https://8.8.8.8/@127.0.0.1/", None),
    // Space and control characters.
    (" https://127.0.0.1:{p}/", IP), ("https://127.0.0.1:{p}/ ", IP), ("https://127.0\t.0.1:{p}/", IP), ("ht\ntps://127.0.0.1:{p}/", IP),
    ("https://127.0.\r\n0.1:{p}/", IP), ("https://127.0.0.1 :{p}/", URL), ("https://exa mple.com/", URL), ("https://a\u{7f}b.example/", URL),
    ("\u{1}https://127.0.0.1:{p}/", IP),
    // Schemes, ports, nothing at all.
    ("http://8.8.8.8/", URL), ("http://127.0.0.1:{p}/", URL), ("ftp://8.8.8.8/", URL), ("file:///etc/passwd", URL), ("gopher://127.0.0.1:{p}/", URL),
    ("dict://127.0.0.1:{p}/", URL), ("data:text/plain,x", URL), ("javascript:alert(1)", URL), ("unix:/run/a.sock", URL), ("ws://8.8.8.8/", URL),
    ("wss://8.8.8.8/", URL), ("//127.0.0.1:{p}/", URL), ("/hooks", URL), ("127.0.0.1:{p}", URL), ("", URL), ("https://", URL), ("https://:443/", URL),
    ("https://8.8.8.8:0/", PORT), ("https://8.8.8.8:22/", PORT), ("https://8.8.8.8:25/", PORT), ("https://8.8.8.8:80/", PORT),
    ("https://8.8.8.8:6379/", PORT), ("https://8.8.8.8:5432/", PORT), ("https://8.8.8.8:65535/", PORT), ("https://8.8.8.8:65536/", URL),
    ("https://8.8.8.8:-1/", URL), ("https://8.8.8.8:4a/", URL), ("https://8.8.8.8:00443/", None), ("https://8.8.8.8:/", None),
];
