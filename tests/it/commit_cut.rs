//! A commit whose answer never comes: it may have happened or not, and the work's own key tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use twiceproof_shared::store::{DatabaseUrl, Store, StoreError, StoreOptions};

use crate::harness::{Bed, Suite};
use crate::kit::{Effect, Receiving, effects, make_effects, signed, source};

pub fn register(suite: &mut Suite) {
    suite.postgres("commits::rel_b49_an_unknown_commit_that_happened_is_answered_from_the_ledger", happened);
    suite.postgres("commits::rel_b49_an_unknown_commit_that_did_not_happen_runs_again", did_not_happen);
    suite.postgres("commits::a_host_is_told_that_its_commit_is_unknown", host_told);
    suite.postgres("commits::an_unknown_commit_stays_unknown_while_the_database_is_away", away);
}

/// What the proxy does with the next COMMIT.
const PASS: u8 = 0;
const CUT_BEFORE: u8 = 1;
const CUT_AFTER: u8 = 2;

/// The bytes of a COMMIT in PostgreSQL's simple query protocol.
const COMMIT: &[u8] = b"Q\x00\x00\x00\x0bCOMMIT\x00";

/// A proxy in front of PostgreSQL that cuts the connection at the next COMMIT, once.
struct Proxy {
    url: DatabaseUrl,
    mode: Arc<AtomicU8>,
    cuts: Arc<AtomicUsize>,
    /// New connections are closed at once.
    away: Arc<AtomicBool>,
}

impl Proxy {
    async fn start(database: &DatabaseUrl) -> Self {
        let text = database.expose();
        let start = text.find("127.0.0.1:").unwrap();
        let server = text[start..].split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let url = DatabaseUrl::parse(&text.replace(&server, &own)).unwrap();
        let (mode, cuts) = (Arc::new(AtomicU8::new(PASS)), Arc::new(AtomicUsize::new(0)));
        let away = Arc::new(AtomicBool::new(false));
        let proxy = Self { url, mode: Arc::clone(&mode), cuts: Arc::clone(&cuts), away: Arc::clone(&away) };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if away.load(Ordering::SeqCst) {
                    continue;
                }
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(carry(client, server, Arc::clone(&mode), Arc::clone(&cuts)));
            }
        });
        proxy
    }

    fn arm(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }

    fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }

    async fn store(&self) -> Store {
        Store::connect(&self.url, StoreOptions::default()).await.unwrap()
    }
}

async fn carry(client: TcpStream, server: TcpStream, mode: Arc<AtomicU8>, cuts: Arc<AtomicUsize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let muted = Arc::new(AtomicBool::new(false));
    let back = tokio::spawn({
        let muted = Arc::clone(&muted);
        async move {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                if !muted.load(Ordering::SeqCst) && to_client.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
        }
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
        let bytes = &buffer[..read];
        if bytes == COMMIT {
            let armed = mode.swap(PASS, Ordering::SeqCst);
            if armed != PASS {
                cuts.fetch_add(1, Ordering::SeqCst);
                // The answer must not get through, and the COMMIT must be over before the client hears of the cut.
                muted.store(true, Ordering::SeqCst);
                if armed == CUT_AFTER {
                    to_server.write_all(bytes).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                back.abort();
                return;
            }
        }
        if to_server.write_all(bytes).await.is_err() {
            break;
        }
    }
    back.abort();
}

async fn happened(bed: Bed) {
    cut_while_receiving(bed, CUT_AFTER).await;
}

async fn did_not_happen(bed: Bed) {
    cut_while_receiving(bed, CUT_BEFORE).await;
}

async fn cut_while_receiving(bed: Bed, mode: u8) {
    let direct = bed.db.store(None).await.unwrap();
    make_effects(&direct).await;
    let proxy = Proxy::start(bed.db.url()).await;
    let store = proxy.store().await;
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let receiving = Receiving::start(&store, source(), handler).await;
    for round in 1..=5 {
        proxy.arm(mode);
        let message = signed(&format!("msg_{round}"), "a", store.now());
        let answer = receiving.send(&message).await;
        assert_eq!(proxy.cuts(), round, "the cut bit");
        assert_eq!(answer.status, 200);
        let again = receiving.send(&message).await;
        assert_eq!((again.status.as_u16(), &again.body), (200, &answer.body));
        assert_eq!(effects(&direct).await.len(), round, "one effect for each event");
    }
}

async fn host_told(bed: Bed) {
    let direct = bed.db.store(None).await.unwrap();
    make_effects(&direct).await;
    let proxy = Proxy::start(bed.db.url()).await;
    let store = proxy.store().await;
    for (mode, expected) in [(CUT_AFTER, 1), (CUT_BEFORE, 1)] {
        proxy.arm(mode);
        let mut tx = store.begin().await.unwrap();
        tx.conn().execute(crate::kit::ADD_EFFECT, &["msg".into(), b"x".as_slice().into()]).await.unwrap();
        let result = tx.commit().await;
        assert!(matches!(result, Err(StoreError::Unknown(_))), "{result:?}");
        assert_eq!(effects(&direct).await.len(), expected);
    }
}

async fn away(bed: Bed) {
    let direct = bed.db.store(None).await.unwrap();
    make_effects(&direct).await;
    let proxy = Proxy::start(bed.db.url()).await;
    let mut options = StoreOptions::default();
    options.connections = Some(1);
    let store = Store::connect(&proxy.url, options).await.unwrap();
    proxy.arm(CUT_AFTER);
    // The one connection that there is gets cut, and no other can be made to look the work up.
    proxy.away.store(true, Ordering::SeqCst);
    let unit = store.run(|conn| {
        Box::pin(async move { conn.execute(crate::kit::ADD_EFFECT, &["msg".into(), b"x".as_slice().into()]).await })
    });
    let result: Result<u64, StoreError> = unit.await;
    assert_eq!(proxy.cuts(), 1, "the cut bit");
    assert!(matches!(result, Err(StoreError::Unknown(_))), "it was committed, but the unit got {result:?}");
    assert_eq!(effects(&direct).await.len(), 1);
}
