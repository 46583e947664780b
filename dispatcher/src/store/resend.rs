//! Sending again by hand, beside the schedule.
//!
//! A delivery that is sent again becomes pending and keeps what it was in `resume_…`: if the attempt fails it goes back to
//! that, and the schedule goes on as if nothing had happened; if it succeeds the delivery is delivered.
//! One with an ordering key takes its place among those of its key. One that is made at most once and waits for its first attempt
//! gets it now, as its schedule's.
//! Invariants: as everywhere a leased row changes under its token only; the number of scheduled attempts does not grow.

use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::store::{Arg, Conn, StoreError};

use super::claim::ClaimedDelivery;
use super::fan_outs;

/// Has a delivery sent again that waits for its time or has come to its end. False: it is neither, or there is none.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn again(
    conn: &mut Conn<'_>,
    tenant: &str,
    event: &str,
    endpoint: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let updated = conn
        .execute(
            "UPDATE twiceproof_deliveries
             SET state = CASE WHEN ordering_key IS NULL OR state = 'backoff' THEN 'pending' ELSE 'blocked' END,
                 state_reason = NULL, due_at = $4, final_at = NULL,
                 resume_state = CASE WHEN at_most_once = 0 OR state <> 'backoff' THEN state END,
                 resume_reason = state_reason, resume_due_at = due_at
             WHERE tenant = $1 AND event = $2 AND endpoint = $3 AND state IN ('backoff', 'delivered', 'dead')",
            &[tenant.into(), event.into(), endpoint.into(), now.into()],
        )
        .await?;
    Ok(updated == 1)
}

/// Makes a delivery of an event for one endpoint, as a fan-out would, unless there is one. False: there is one already.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn owe(
    conn: &mut Conn<'_>,
    tenant: &str,
    event: &str,
    endpoint: &str,
    (now, deadline_at): (Timestamp, Timestamp),
) -> Result<bool, StoreError> {
    let inserted = conn
        .execute(
            concat!(
                fan_outs::delivery!("$4", "$5"),
                "FROM twiceproof_events v JOIN twiceproof_endpoints e ON e.tenant = v.tenant
                 WHERE v.tenant = $1 AND v.id = $2 AND e.id = $3
                 ON CONFLICT DO NOTHING"
            ),
            &[tenant.into(), event.into(), endpoint.into(), now.into(), deadline_at.into()],
        )
        .await?;
    Ok(inserted == 1)
}

/// Records what came of an attempt by hand. False: its lease was lost.
///
/// # Errors
/// As [`StoreError`] says.
pub(super) async fn settle(
    conn: &mut Conn<'_>,
    claimed: &ClaimedDelivery,
    is_success: bool,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let key = &claimed.key;
    let args = [
        Arg::from(&key.tenant),
        Arg::from(&key.event),
        Arg::from(&key.endpoint),
        claimed.token.into(),
        i64::from(is_success).into(),
        now.into(),
    ];
    let updated = conn
        .execute(
            "UPDATE twiceproof_deliveries
             SET state = CASE WHEN $5 = 1 THEN 'delivered' ELSE coalesce(resume_state, 'dead') END,
                 state_reason = CASE WHEN $5 = 1 THEN NULL ELSE resume_reason END,
                 due_at = CASE WHEN $5 = 1 THEN due_at ELSE coalesce(resume_due_at, due_at) END,
                 final_at = CASE WHEN $5 = 1 OR coalesce(resume_state, 'dead') <> 'backoff' THEN $6 END,
                 resume_state = NULL, resume_reason = NULL, resume_due_at = NULL, lease_owner = NULL, lease_until = 0
             WHERE tenant = $1 AND event = $2 AND endpoint = $3 AND state = 'leased' AND token = $4",
            &args,
        )
        .await?;
    Ok(updated == 1)
}
