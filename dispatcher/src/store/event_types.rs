//! The event types of an organisation.

use twiceproof_shared::store::{Arg, Conn, StoreError};

/// A row of the event types table.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct EventTypeRow {
    /// Whose event type it is.
    pub organisation: String,
    /// Its name.
    pub name: String,
    /// What it means.
    pub description: String,
    /// 1: it is no longer used.
    pub archived: i64,
    /// 1: it is going to be archived.
    pub deprecated: i64,
    /// JSON schemas by version, as a JSON object.
    pub schemas: Option<String>,
    /// Who may see it, for portals.
    pub feature_flag: Option<String>,
    /// `at_least_once` or `at_most_once`.
    pub guarantee: String,
    /// When it was created.
    pub created_at: i64,
    /// When it was last changed.
    pub updated_at: i64,
}

/// Reads whole rows of event types.
macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT organisation, name, description, archived, deprecated, schemas, feature_flag, guarantee, created_at, updated_at
             FROM twiceproof_event_types ",
            $which
        )
    };
}

/// Inserts an event type. False: there is one of this name.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn insert(conn: &mut Conn<'_>, row: &EventTypeRow) -> Result<bool, StoreError> {
    let sql = "INSERT INTO twiceproof_event_types
             (organisation, name, description, archived, deprecated, schemas, feature_flag, created_at, updated_at, guarantee)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";
    Ok(conn.execute(sql, &args(row)).await? == 1)
}

/// Writes all of an event type but its name. False: there is none of this name.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn update(conn: &mut Conn<'_>, row: &EventTypeRow) -> Result<bool, StoreError> {
    let sql = "UPDATE twiceproof_event_types SET description = $3, archived = $4, deprecated = $5, schemas = $6,
             feature_flag = $7, created_at = $8, updated_at = $9, guarantee = $10
         WHERE organisation = $1 AND name = $2";
    Ok(conn.execute(sql, &args(row)).await? == 1)
}

fn args(row: &EventTypeRow) -> [Arg<'_>; 10] {
    [
        Arg::from(&row.organisation),
        Arg::from(&row.name),
        Arg::from(&row.description),
        row.archived.into(),
        row.deprecated.into(),
        row.schemas.as_deref().into(),
        row.feature_flag.as_deref().into(),
        row.created_at.into(),
        row.updated_at.into(),
        Arg::from(&row.guarantee),
    ]
}

/// An event type by its name.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn find(conn: &mut Conn<'_>, organisation: &str, name: &str) -> Result<Option<EventTypeRow>, StoreError> {
    conn.fetch_optional(select!("WHERE organisation = $1 AND name = $2"), &[organisation.into(), name.into()]).await
}

/// A page of an organisation's event types by name, with the archived ones (1) or without (0): behind `from` upwards, or
/// before it downwards.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn page(
    conn: &mut Conn<'_>,
    organisation: &str,
    (from, down): (&str, bool),
    archived: bool,
    limit: i64,
) -> Result<Vec<EventTypeRow>, StoreError> {
    let sql = if down {
        select!("WHERE organisation = $1 AND name < $2 AND archived <= $3 ORDER BY name DESC LIMIT $4")
    } else {
        select!("WHERE organisation = $1 AND name > $2 AND archived <= $3 ORDER BY name LIMIT $4")
    };
    conn.fetch_all(sql, &[organisation.into(), from.into(), i64::from(archived).into(), limit.into()]).await
}

/// Deletes an event type. False: there is none of this name.
///
/// # Errors
/// As [`StoreError`] says.
pub async fn delete(conn: &mut Conn<'_>, organisation: &str, name: &str) -> Result<bool, StoreError> {
    let sql = "DELETE FROM twiceproof_event_types WHERE organisation = $1 AND name = $2";
    Ok(conn.execute(sql, &[organisation.into(), name.into()]).await? == 1)
}
