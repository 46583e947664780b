//! Many processes: workers that share a database and die, and processes that only answer.

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use twiceproof::dispatcher::{EndpointPolicy, Policy, Publisher};
use twiceproof::prove::Front;
use twiceproof_shared::store::Store;

use crate::dispatch::{answer, endpoint, event, states, url};
use crate::harness::{Bed, Suite};
use crate::kill::{Program, binary};

pub fn register(suite: &mut Suite) {
    suite.postgres("workers::three_workers_of_which_one_is_killed_again_and_again_lose_nothing", killed);
    suite.postgres("workers::workers_that_are_restarted_in_turn_send_nothing_twice", restarted);
    suite.sqlite("workers::a_second_worker_on_one_file_is_told_who_has_it_and_what_to_do", refused);
    suite.both("workers::what_a_process_that_only_answers_accepts_a_worker_delivers_at_once", only_api);
}

/// How often each event came to each of ten endpoints.
type Requests = Arc<Mutex<HashMap<(usize, String), u32>>>;

async fn receivers(store: &Store) -> (Requests, Vec<Front>) {
    let requests = Requests::default();
    let mut fronts = Vec::new();
    for number in 0..10 {
        let log = Arc::clone(&requests);
        let front = Front::open(move |message| {
            let log = Arc::clone(&log);
            async move {
                let id = message.headers["webhook-id"].to_str().unwrap_or_default().to_owned();
                *log.lock().unwrap().entry((number, id)).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(answer(200))
            }
        });
        let front = front.await.unwrap();
        endpoint(store, url(&front), |new| {
            new.policy = EndpointPolicy::without_breaker();
            new.timeout = Some(Duration::from_secs(2));
        })
        .await;
        fronts.push(front);
    }
    (requests, fronts)
}

async fn publish(store: &Store, deliveries: usize) {
    let publisher = Publisher::new(store, &Policy::default());
    let mut left = deliveries / 10;
    while left > 0 {
        let batch = left.min(200);
        let mut tx = store.begin().await.unwrap();
        let events = (0..batch).map(|_| event("{}")).collect();
        let (_, wake) = publisher.publish_many(&mut tx.conn(), events).await.unwrap();
        tx.commit().await.unwrap();
        wake.send();
        left -= batch;
    }
}

async fn worker_ids(store: &Store) -> BTreeSet<String> {
    let sql = "SELECT id FROM twiceproof_workers";
    let rows: Vec<(String,)> = store.read().await.unwrap().conn().fetch_all(sql, &[]).await.unwrap();
    rows.into_iter().map(|(id,)| id).collect()
}

/// Starts a worker; itself, and the id that it entered itself under.
async fn start(bed: &Bed, store: &Store) -> (Program, String) {
    let before = worker_ids(store).await;
    let program = Program::worker(bed.db.url());
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(id) = worker_ids(store).await.difference(&before).next() {
            return (program, id.clone());
        }
        assert!(Instant::now() < patience, "a worker did not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn leases(store: &Store, worker: &str) -> i64 {
    let sql = "SELECT count(*) FROM twiceproof_deliveries WHERE state = 'leased' AND lease_owner = $1";
    let (count,): (i64,) = store.read().await.unwrap().conn().fetch_one(sql, &[worker.into()]).await.unwrap();
    count
}

async fn all_delivered(store: &Store, deliveries: usize) {
    let patience = Instant::now() + Duration::from_secs(180);
    while states(store).await.get("delivered") != Some(&(deliveries as i64)) {
        assert!(Instant::now() < patience, "{:?} of {deliveries}", states(store).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn came(requests: &Requests) -> usize {
    requests.lock().unwrap().values().map(|times| *times as usize).sum()
}

async fn until_came(requests: &Requests, count: usize) {
    let patience = Instant::now() + Duration::from_secs(120);
    while came(requests) < count {
        assert!(Instant::now() < patience, "{} of {count} came", came(requests));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// `TWICEPROOF_TEST_DELIVERIES=20000` makes it as many, and a kill for every two thousand.
async fn killed(bed: Bed) {
    let deliveries: usize = std::env::var("TWICEPROOF_TEST_DELIVERIES").map_or(4_000, |count| count.parse().unwrap());
    let kills = (deliveries / 2_000).max(3);
    let store = bed.db.store(None).await.unwrap();
    let (requests, _fronts) = receivers(&store).await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(start(&bed, &store).await);
    }
    publish(&store, deliveries).await;
    let mut held = Vec::new();
    for kill in 0..kills {
        until_came(&requests, deliveries * (kill + 1) / (kills + 2)).await;
        let (program, id) = workers.remove(0);
        drop(program);
        held.push(leases(&store, &id).await);
        workers.push(start(&bed, &store).await);
    }
    all_delivered(&store, deliveries).await;
    let requests = requests.lock().unwrap();
    let double: usize = requests.values().map(|times| *times as usize - 1).sum();
    println!("{deliveries} deliveries, {kills} kills, held at each: {held:?}, sent again: {double}");
    assert_eq!(requests.len(), deliveries, "lost");
    assert!(held.iter().sum::<i64>() > 0, "no kill found anything under way");
    assert!(double as i64 <= held.iter().sum(), "more were sent again than were held at the kills");
}

async fn restarted(bed: Bed) {
    let deliveries = 3_000;
    let store = bed.db.store(None).await.unwrap();
    let (requests, _fronts) = receivers(&store).await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(start(&bed, &store).await.0);
    }
    publish(&store, deliveries).await;
    for restart in 0..3 {
        until_came(&requests, deliveries * (restart + 1) / 5).await;
        let mut program = workers.remove(0);
        program.signal("TERM");
        let status = program.ended().await;
        assert!(status.success(), "a graceful stop ends with 0, not with {status}");
        workers.push(start(&bed, &store).await.0);
    }
    all_delivered(&store, deliveries).await;
    let distinct = requests.lock().unwrap().len();
    assert_eq!((distinct, came(&requests)), (deliveries, deliveries));
}

async fn refused(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (_first, _) = start(&bed, &store).await;
    let database = bed.db.url().expose();
    let second = move || {
        let mut command = Command::new(binary());
        command.args(["worker", "--database", &database]).current_dir(std::env::temp_dir());
        command.output().unwrap()
    };
    let output = tokio::task::spawn_blocking(second).await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for part in ["another worker already runs", "process ", "--only api", "PostgreSQL"] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
}

/// `twiceproof serve --only api`. It is killed on drop.
struct Answering(Child);

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn only_api(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let (requests, fronts) = receivers(&store).await;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("jwt");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").unwrap();
    let (database, folder_path) = (bed.db.url().expose(), folder.path().to_owned());
    let program = move || {
        let mut command = Command::new(binary());
        command.env("TWICEPROOF_DATABASE", &database).current_dir(&folder_path);
        command
    };
    // The tenant that the API looks up is the one that the command line enters.
    let mut add = program();
    add.args(["endpoint", "add", &url(&fronts[0]), "--generate", "--again", "--allow-private-addresses"]);
    let added = tokio::task::spawn_blocking(move || add.output().unwrap()).await.unwrap();
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let _worker = start(&bed, &store).await;
    let mut serve = program();
    serve.args([
        "serve",
        "--only",
        "api",
        "--listen",
        "127.0.0.1:0",
        "--jwt-secret-file",
        "jwt",
        "--log-level",
        "error",
    ]);
    let mut process = serve.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap().to_owned();
    let _answering = Answering(process);
    assert_eq!(worker_ids(&store).await.len(), 1, "it is no worker");
    let mut token = program();
    token.args(["token", "--jwt-secret-file", "jwt"]);
    let token = tokio::task::spawn_blocking(move || token.output().unwrap()).await.unwrap();
    let token = String::from_utf8(token.stdout).unwrap().trim().to_owned();
    // The worker has gone to sleep for as long as it ever does.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let body = r#"{"eventType":"order.placed","payload":{"order":1}}"#;
    let post = format!(
        "POST /api/v1/app/default/msg HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let asked = Instant::now();
    let asking = address.clone();
    let answered = tokio::task::spawn_blocking(move || ask(&asking, &post)).await.unwrap();
    assert!(answered.starts_with("HTTP/1.1 202"), "{answered}");
    until_came(&requests, 11).await;
    println!("delivered {} ms after it was asked for", asked.elapsed().as_millis());
    all_delivered(&store, 11).await;
}
