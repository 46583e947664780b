//! One attempt: sign, send, decide.
//!
//! Place in the path: between the claim and the record; `deliver` runs many side by side.
//! Invariants: nothing is sent that could outlast its lease; an attempt that panics is one of unknown outcome, recorded like
//! any other, so that nothing can be sent for ever without a trace.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use ::metrics::{counter, histogram};
use futures_util::FutureExt;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::store::Store;
use twiceproof_shared::{kill, metrics};

use super::news::News;
use crate::decide::{DeliveryState, decide, throttle};
use crate::endpoint_policy::EndpointPolicy;
use crate::exchange::{Exchange, NotSent, Unknown};
use crate::guard::Refused;
use crate::request::{Letter, SignedRequest, sign};
use crate::schedule::Policy;
use crate::send::{Sender, Timings};
use crate::store::claim::ClaimedDelivery;
use crate::store::load::{Content, Target};
use crate::store::record::{Finished, Span};

/// A claimed delivery with what it is made of.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) claimed: ClaimedDelivery,
    /// None: the event is no longer stored.
    pub(super) content: Option<Content>,
    /// None: the endpoint is no longer stored.
    pub(super) target: Option<Arc<Target>>,
}

/// How an attempt ended.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all end with something to record, so a box would cost more than it saves"
)]
pub(super) enum Ended {
    /// With something to record.
    Finished(Finished),
    /// Nothing was sent, and nothing is to be recorded: the lease is given back.
    Unsent(ClaimedDelivery),
}

/// What an attempt works with. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Hands {
    pub(super) store: Store,
    pub(super) sender: Sender,
    pub(super) policy: Arc<Policy>,
    pub(super) news: Arc<News>,
}

impl Hands {
    /// Signs, sends and decides. `stop` ends the request early.
    pub(super) async fn attempt(&self, mail: Mail, stop: impl Future<Output = ()>) -> Ended {
        let started_at = self.store.now();
        let Mail { claimed, content, target } = mail;
        let timeout = target.as_ref().map_or(self.policy.timeout, |target| target.timeout);
        // Half the margin is for the record; a claim that has waited longer than the other half is not sent any more.
        if started_at.plus(timeout).plus(self.policy.lease_margin / 2) > claimed.lease_until {
            tracing::warn!(event = %claimed.key.event, "too much of a lease had passed before its request could be sent");
            return Ended::Unsent(claimed);
        }
        let (exchange, timings) = match request(&claimed, content, target.as_deref(), started_at) {
            Ok(request) => {
                kill::at("before_request");
                self.exchange(request, &claimed, stop).await
            }
            Err(reason) => (Exchange::NotSent(reason), Timings::default()),
        };
        if exchange == Exchange::NotSent(NotSent::Shutdown) {
            return Ended::Unsent(claimed);
        }
        for (name, took) in
            [(metrics::CONNECTED_SECONDS, timings.connected), (metrics::ANSWERED_SECONDS, timings.answered)]
        {
            if let Some(took) = took {
                histogram!(name).record(took.as_secs_f64());
            }
        }
        let policy = target.as_deref().map(|target| &target.policy);
        Ended::Finished(self.finish(claimed, exchange, policy, started_at).timed(timings))
    }

    async fn exchange(
        &self,
        request: SignedRequest,
        claimed: &ClaimedDelivery,
        stop: impl Future<Output = ()>,
    ) -> (Exchange, Timings) {
        // The hash in it is worth its time only where somebody reads it.
        let destination = tracing::enabled!(tracing::Level::DEBUG).then(|| request.destination());
        let sending = AssertUnwindSafe(self.sender.send_until(request, stop)).catch_unwind();
        let sent = sending.await.map(|sent| (sent.exchange, sent.timings));
        let (exchange, timings) = sent.unwrap_or((Exchange::Unknown(Unknown::Panicked), Timings::default()));
        tracing::debug!(
            event = %claimed.key.event,
            endpoint = %claimed.key.endpoint,
            destination = destination.map(tracing::field::display),
            outcome = exchange.outcome(),
            status = exchange.status(),
            error = exchange.error(),
            "an attempt ended"
        );
        if !matches!(exchange, Exchange::NotSent(_)) {
            kill::at("request_left");
        }
        (exchange, timings)
    }

    fn finish(
        &self,
        claimed: ClaimedDelivery,
        exchange: Exchange,
        policy: Option<&EndpointPolicy>,
        started_at: Timestamp,
    ) -> Finished {
        let ended_at = self.store.now();
        let state = DeliveryState {
            attempts: claimed.attempts.saturating_add(1),
            deadline_at: claimed.deadline_at,
            expires_at: claimed.expires_at,
            at_most_once: claimed.at_most_once,
        };
        measure(&claimed, &exchange, Span { started_at, ended_at });
        let policy = policy.map_or(Cow::Borrowed(&*self.policy), |policy| policy.over(&self.policy));
        let decision = decide(&state, &exchange, &policy, ended_at, self.store.random().unit());
        self.news.tell(&claimed, state.attempts, &exchange, decision, ended_at);
        let attempt = Id::mint(Prefix::Attempt, started_at, self.store.random());
        let throttled_until = throttle(&state, &exchange, &policy, ended_at);
        claimed.finish(attempt, exchange, decision, Span { started_at, ended_at }).throttled(throttled_until)
    }
}

fn measure(claimed: &ClaimedDelivery, exchange: &Exchange, span: Span) {
    let outcome = exchange.outcome();
    counter!(metrics::ATTEMPTS, "outcome" => outcome).increment(1);
    let took = span.ended_at.since(span.started_at);
    histogram!(metrics::ATTEMPT_SECONDS, "outcome" => outcome).record(took.as_secs_f64());
    if claimed.attempts == 0
        && !claimed.by_hand
        && let Ok(id) = Id::parse(Prefix::Event, &claimed.key.event)
    {
        let lag = span.started_at.since(id.minted_at());
        histogram!(metrics::LAG_SECONDS).record(lag.as_secs_f64());
    }
}

fn request(
    claimed: &ClaimedDelivery,
    content: Option<Content>,
    target: Option<&Target>,
    now: Timestamp,
) -> Result<SignedRequest, NotSent> {
    if claimed.expires_at.is_some_and(|expires_at| expires_at <= now) {
        return Err(NotSent::Expired);
    }
    let Content { content_type, payload } = content.ok_or(NotSent::EventMissing)?;
    let target = target.ok_or_else(|| NotSent::NotSigned("the endpoint is no longer stored".to_owned()))?;
    let url = target.url.as_ref().ok_or(NotSent::Blocked(Refused::NotAUrl))?;
    let letter = Letter {
        url,
        event_id: &claimed.key.event,
        content_type: &content_type,
        payload: &payload,
        secrets: &target.secrets,
        timeout: target.timeout,
        custom: &target.headers,
        signing: &target.signing,
    };
    sign(&letter, now).map_err(|reason| NotSent::NotSigned(reason.to_string()))
}
