//! Event types: names with a description and schemas, for whoever subscribes.
//!
//! Events may be published and filters set without them. Invariants: archiving hides a type and deletes nothing.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::Id;
use twiceproof_shared::store::{Conn, StoreError};

use super::{ManageError, found, tenants};
use crate::event::check_event_type;
use crate::store::event_types::{self, EventTypeRow};

/// The most bytes of all schemas of a type, as JSON.
pub const MAX_SCHEMAS_BYTES: usize = 512 * 1024;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION_BYTES: usize = 8 * 1024;

/// JSON schemas by version, each as it was written.
pub type Schemas = BTreeMap<String, Box<RawValue>>;

/// An event type as it is stored.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EventType {
    /// Its name.
    pub name: String,
    /// What can be changed.
    pub details: EventTypeDetails,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// What can be changed of an event type.
#[derive(Debug, Clone, Default)]
pub struct EventTypeDetails {
    /// What it means.
    pub description: String,
    /// It is no longer used.
    pub archived: bool,
    /// It is going to be archived.
    pub deprecated: bool,
    /// JSON schemas by version.
    pub schemas: Option<Schemas>,
    /// Who may see it, for portals.
    pub feature_flag: Option<String>,
    /// How often events of this type are sent; it counts for those that are published from now on.
    pub guarantee: Guarantee,
}

/// How often an event is sent to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Guarantee {
    /// Until it is taken, or the horizon ends; an attempt whose outcome is unknown is repeated.
    #[default]
    AtLeastOnce,
    /// What may have been sent is not sent again: an attempt that was refused, whose outcome is unknown or whose worker died is
    /// the last one. Only what surely did not leave is tried again.
    AtMostOnce,
}

impl Guarantee {
    /// As the database names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtLeastOnce => "at_least_once",
            Self::AtMostOnce => "at_most_once",
        }
    }
}

impl EventType {
    /// An example of a payload: the first of `examples`, or `example`, of the newest schema.
    #[must_use]
    pub fn example(&self) -> Option<Box<RawValue>> {
        #[derive(serde::Deserialize)]
        struct Examples {
            #[serde(default)]
            examples: Vec<Box<RawValue>>,
            example: Option<Box<RawValue>>,
        }
        let schemas = self.details.schemas.as_ref()?;
        // Versions are numbers by custom; other names come before them.
        let newest = schemas.iter().max_by_key(|(version, _)| version.parse::<u64>().ok())?.1;
        let Examples { examples, example } = serde_json::from_str(newest.get()).ok()?;
        examples.into_iter().next().or(example)
    }
}

/// Creates an event type in the caller's transaction. An archived one of this name takes its place up again. False: there is
/// one already.
///
/// # Errors
/// As [`ManageError`] says.
pub async fn create(
    conn: &mut Conn<'_>,
    organisation: &Id,
    name: &str,
    details: EventTypeDetails,
    now: Timestamp,
) -> Result<Option<EventType>, ManageError> {
    let new = EventType { name: name.to_owned(), details, created_at: now, updated_at: now };
    let row = row(organisation, &new)?;
    crate::store::tenants::enter_organisation(conn, organisation.as_str(), now).await?;
    if event_types::insert(conn, &row).await? {
        return Ok(Some(new));
    }
    match find(conn, organisation, name).await? {
        // An earlier run of the same unit left the same time.
        Some(old) if old.created_at == now => Ok(Some(old)),
        Some(old) if old.details.archived => {
            event_types::update(conn, &row).await?;
            Ok(Some(new))
        }
        _ => Ok(None),
    }
}

/// An event type by its name.
///
/// # Errors
/// As [`ManageError::Store`] says.
pub async fn find(conn: &mut Conn<'_>, organisation: &Id, name: &str) -> Result<Option<EventType>, ManageError> {
    event_types::find(conn, organisation.as_str(), name).await?.map(event_type).transpose()
}

/// A page of an organisation's event types by name: behind `from`, or before it where it goes `down`.
///
/// # Errors
/// As [`ManageError::Store`] says.
pub async fn page(
    conn: &mut Conn<'_>,
    organisation: &Id,
    from: (&str, bool),
    with_archived: bool,
    limit: i64,
) -> Result<Vec<EventType>, ManageError> {
    let rows = event_types::page(conn, organisation.as_str(), from, with_archived, limit).await?;
    rows.into_iter().map(event_type).collect()
}

/// Changes an event type.
///
/// # Errors
/// As [`ManageError`] says.
pub async fn update(
    conn: &mut Conn<'_>,
    organisation: &Id,
    old: &EventType,
    details: EventTypeDetails,
    now: Timestamp,
) -> Result<EventType, ManageError> {
    let new = EventType { details, updated_at: now, ..old.clone() };
    found(event_types::update(conn, &row(organisation, &new)?).await?)?;
    Ok(new)
}

/// Deletes an event type. Events and filters of this name stay.
///
/// # Errors
/// [`ManageError::NotFound`], or as [`ManageError::Store`] says.
pub async fn delete(conn: &mut Conn<'_>, organisation: &Id, name: &str) -> Result<(), ManageError> {
    found(event_types::delete(conn, organisation.as_str(), name).await?)
}

fn row(organisation: &Id, event_type: &EventType) -> Result<EventTypeRow, ManageError> {
    let details = &event_type.details;
    check_event_type(&event_type.name)?;
    if details.description.len() > MAX_DESCRIPTION_BYTES || details.description.contains('\0') {
        return Err(ManageError::Limit("a description has at most 8 KiB and no NUL"));
    }
    if details.feature_flag.as_ref().is_some_and(|flag| flag.len() > tenants::MAX_NAME_BYTES) {
        return Err(ManageError::Limit("a feature flag has at most 255 bytes"));
    }
    // Texts and JSON always can be written as JSON.
    let schemas = details.schemas.as_ref().map(|schemas| serde_json::to_string(schemas).unwrap_or_default());
    if schemas.as_ref().is_some_and(|schemas| schemas.len() > MAX_SCHEMAS_BYTES || schemas.contains("\\u0000")) {
        return Err(ManageError::Limit("schemas have at most 512 KiB as JSON, and no NUL"));
    }
    Ok(EventTypeRow {
        organisation: organisation.to_string(),
        name: event_type.name.clone(),
        description: details.description.clone(),
        archived: details.archived.into(),
        deprecated: details.deprecated.into(),
        schemas,
        feature_flag: details.feature_flag.clone(),
        guarantee: details.guarantee.as_str().to_owned(),
        created_at: event_type.created_at.as_millis(),
        updated_at: event_type.updated_at.as_millis(),
    })
}

fn event_type(row: EventTypeRow) -> Result<EventType, ManageError> {
    let broken =
        |_| StoreError::Refused(format!("what is stored of the event type {} cannot be read", row.name).into());
    let schemas = row.schemas.as_deref().map(serde_json::from_str).transpose().map_err(broken)?;
    Ok(EventType {
        name: row.name,
        details: EventTypeDetails {
            description: row.description,
            archived: row.archived == 1,
            deprecated: row.deprecated == 1,
            schemas,
            feature_flag: row.feature_flag,
            // The table's CHECK leaves no other word.
            guarantee: if row.guarantee == "at_most_once" { Guarantee::AtMostOnce } else { Guarantee::AtLeastOnce },
        },
        created_at: Timestamp::from_millis(row.created_at),
        updated_at: Timestamp::from_millis(row.updated_at),
    })
}
