//! What is counted and measured, by name: one table for the code that counts, the exporter and the guide.
//!
//! Counting goes through the `metrics` facade: without a recorder, as in a host that wants none, it costs next to nothing.
//! Invariants: labels have few values (an outcome, a state, a source, the template of a route), never an id, a URL or a tenant.

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name; `_total` for counters, else it ends with its unit.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// Attempts that have ended.
pub const ATTEMPTS: &str = "twiceproof_attempts_total";
/// How long attempts took.
pub const ATTEMPT_SECONDS: &str = "twiceproof_attempt_duration_seconds";
/// After how long the connections of attempts stood.
pub const CONNECTED_SECONDS: &str = "twiceproof_attempt_connected_seconds";
/// After how long attempts had the head of their answer.
pub const ANSWERED_SECONDS: &str = "twiceproof_attempt_answered_seconds";
/// How long events waited for their first attempt.
pub const LAG_SECONDS: &str = "twiceproof_first_attempt_lag_seconds";
/// Deliveries whose attempts were recorded.
pub const RECORDED: &str = "twiceproof_deliveries_recorded_total";
/// Events that were accepted.
pub const PUBLISHED: &str = "twiceproof_published_total";
/// Open deliveries.
pub const OPEN: &str = "twiceproof_open_deliveries";
/// Deliveries that somebody should have moved.
pub const OVERDUE: &str = "twiceproof_overdue_deliveries";
/// Requests that a receiver took.
pub const RECEIVED: &str = "twiceproof_received_total";
/// Requests to the REST API.
pub const API_REQUESTS: &str = "twiceproof_api_requests_total";
/// How long they took.
pub const API_SECONDS: &str = "twiceproof_api_request_duration_seconds";

/// Every metric.
pub const METRICS: &[Metric] = &[
    counter(
        PUBLISHED,
        &["fresh"],
        "events accepted in transactions of the library's own; fresh=false: their uid was known",
    ),
    counter(ATTEMPTS, &["outcome"], "attempts that ended: delivered, refused, not_sent or unknown"),
    histogram(ATTEMPT_SECONDS, &["outcome"], "from the start of an attempt to its end"),
    histogram(
        CONNECTED_SECONDS,
        &[],
        "from the start of an attempt until its connection stood, with TLS, where a new one was made",
    ),
    histogram(ANSWERED_SECONDS, &[], "from the start of an attempt until the head of an answer had come"),
    histogram(LAG_SECONDS, &[], "from the acceptance of an event to the start of its first attempt at an endpoint"),
    counter(
        RECORDED,
        &["result"],
        "attempts recorded: delivered, retried, dead, parked, or late (their lease was lost)",
    ),
    gauge(OPEN, &["state"], "deliveries that are still to be made, counted to 100,000 for each state"),
    gauge(
        OVERDUE,
        &["state"],
        "deliveries that have waited a minute longer than they should for somebody to move them; 0 is well",
    ),
    counter(RECEIVED, &["source", "answer"], "requests: new, replay, expired, conflict, in_flight, refused or failed"),
    counter(API_REQUESTS, &["method", "route", "status"], "answers of the REST API"),
    histogram(API_SECONDS, &["method", "route"], "from a request's head to its answer's"),
];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: "counter", labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: "gauge", labels, help }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: "histogram", labels, help }
}
