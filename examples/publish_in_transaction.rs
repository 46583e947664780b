//! Publish in the host's own transaction: an order and its event exist together, or neither does.
//!
//! The host has its own sqlx connection and its own tables. It places two orders; the second is rolled back after its
//! event was published, and nobody ever hears of it.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;

use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use twiceproof::dispatcher::{AddressPolicy, Manager, NewEndpoint, NewEvent, Policy, Publisher};
use twiceproof::key::Key;
use twiceproof::store::{DatabaseUrl, Store, StoreOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    let store = Store::connect(&DatabaseUrl::sqlite(&file)?, StoreOptions::default()).await?;
    store.migrate().await?;

    // Somebody subscribed to the events of this shop.
    let tenant = Key::new("shop")?;
    let policy = Policy::default();
    let manager = Manager::new(&store, AddressPolicy::PublicOnly, &policy);
    manager.create_now(NewEndpoint::new(tenant.clone(), "https://example.com/hook")).await?;

    // The host's own connection. A connection that could lose commits would be refused.
    let mut host = SqliteConnectOptions::new().filename(&file).synchronous(SqliteSynchronous::Full).connect().await?;
    sqlx::query("CREATE TABLE orders (number INTEGER NOT NULL)").execute(&mut host).await?;
    let publisher = Publisher::new(&store, &policy);

    for (number, paid) in [(1041, true), (1042, false)] {
        let mut tx = store.begin_on(&mut host).await?;
        sqlx::query("INSERT INTO orders (number) VALUES ($1)").bind(number).execute(tx.sqlx()).await?;
        let event = NewEvent::json(tenant.clone(), "order.placed", format!(r#"{{"order":{number}}}"#));
        let (published, wake) = publisher.publish(&mut tx.conn(), event).await?;
        if paid {
            tx.commit().await?;
            // After the commit: a hint to a worker of this process. Without one, polling finds the event.
            wake.send();
            println!("order {number}: committed with its event {}", published.id);
        } else {
            tx.rollback().await?;
            println!("order {number}: rolled back, and its event with it");
        }
    }

    let count = async |sql| -> Result<i64, Box<dyn Error>> {
        let (count,) = store.read().await?.conn().fetch_one(sql, &[]).await?;
        Ok(count)
    };
    println!(
        "{} order, {} event, {} delivery owed",
        count("SELECT count(*) FROM orders").await?,
        count("SELECT count(*) FROM twiceproof_events").await?,
        count("SELECT count(*) FROM twiceproof_deliveries").await?,
    );
    Ok(())
}
