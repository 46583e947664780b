//! The rules of this code that a machine can check: who may depend on whom, where SQL and connections may stand, and
//! that the documents name only what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use twiceproof_shared::kill::{MIGRATION, POINTS};
use twiceproof_shared::store::Database;

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.plain("rules::dependencies_point_one_way", dependencies);
    suite.plain("rules::sql_stands_only_in_store_and_ledger", sql_rooms);
    suite.plain("rules::connections_are_opened_only_in_their_rooms", connection_rooms);
    suite.plain("rules::no_file_is_longer_than_500_lines", file_sizes);
    suite.plain("rules::every_kill_point_is_in_the_table_and_in_the_code_once_or_more", kill_points);
    suite.plain("rules::every_path_named_in_architecture_exists", named_paths);
    suite.plain("rules::both_schemas_name_the_same_tables_columns_and_indexes", same_schema);
    suite.both("rules::every_unique_index_starts_with_the_tenant", unique_indexes);
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Rust file below the folders but the `tests.rs` of modules, with its text up to its unit tests.
fn sources(folders: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                let text = fs::read_to_string(&path).unwrap();
                let production = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
                found.insert(name, production);
            }
        }
    }
    assert!(!found.is_empty());
    found
}

const PRODUCTION: [&str; 5] = ["src", "receiver/src", "dispatcher/src", "shared/src", "migrations/src"];

fn dependencies() {
    let names = |manifest: &str| -> Vec<String> {
        let text = read(manifest);
        let section = text.split("\n[dependencies]").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        section.lines().filter_map(|line| line.split(['.', ' ', '=']).next()).map(str::to_owned).collect()
    };
    let ours = |manifest: &str| -> Vec<String> {
        names(manifest).into_iter().filter(|name| name.starts_with("twiceproof-")).collect()
    };
    assert_eq!(ours("migrations/Cargo.toml"), [""; 0]);
    assert_eq!(ours("shared/Cargo.toml"), ["twiceproof-migrations"]);
    assert_eq!(ours("receiver/Cargo.toml"), ["twiceproof-shared"]);
    assert_eq!(ours("dispatcher/Cargo.toml"), ["twiceproof-shared"]);
    let shared = names("shared/Cargo.toml");
    for framework in ["axum", "hyper", "http", "tower", "reqwest", "hyper-util"] {
        assert!(!shared.contains(&framework.to_owned()), "shared knows no HTTP framework, but {framework} is there");
    }
}

fn sql_rooms() {
    // A statement begins with one of these inside a literal.
    let verbs =
        ["\"SELECT ", "\"INSERT ", "\"UPDATE ", "\"DELETE ", "\"WITH ", "\"CREATE ", "\"PRAGMA ", "\"SAVEPOINT "];
    for (file, text) in sources(&PRODUCTION) {
        let allowed =
            ["/store/", "/store.rs", "/ledger/", "shared/src/testing/"].iter().any(|room| file.contains(room));
        for (number, line) in text.lines().enumerate() {
            let code = line.trim_start();
            if code.starts_with("//") || allowed {
                continue;
            }
            assert!(
                !verbs.iter().any(|verb| code.contains(verb)),
                "SQL outside its rooms: {file}:{}: {code}",
                number + 1
            );
        }
        assert!(!text.contains("AssertSqlSafe"), "SQL is a static string: {file}");
    }
}

fn connection_rooms() {
    let opens = ["reqwest::Client", "TcpStream::connect", "legacy::Client", "HttpConnector", "UdpSocket"];
    let rooms = ["dispatcher/src/send", "src/client", "src/prove", "src/bench"];
    for (file, text) in sources(&PRODUCTION) {
        if rooms.iter().any(|room| file.starts_with(room)) {
            continue;
        }
        for open in opens {
            assert!(!text.contains(open), "{file} opens connections by {open}; only {rooms:?} may");
        }
    }
}

fn kill_points() {
    let mut passed = BTreeSet::new();
    for text in sources(&PRODUCTION).values() {
        let places = text.split("kill::at(\"").skip(1);
        passed.extend(places.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()));
    }
    let table: BTreeSet<String> = POINTS.iter().chain([&MIGRATION]).map(|point| point.name.to_owned()).collect();
    assert_eq!(passed, table);
}

fn file_sizes() {
    for (file, _) in sources(&[&PRODUCTION[..], &["tests", "examples"]].concat()) {
        let lines = read(&file).lines().count();
        let most = if file.starts_with("examples") { 120 } else { 500 };
        assert!(lines <= most, "{file} has {lines} lines, more than {most}");
    }
}

fn named_paths() {
    let text = read("ARCHITECTURE.md");
    let mut named = 0;
    for span in text.split('`').skip(1).step_by(2) {
        let is_path = span.contains('/') && !span.contains([' ', '{', '*', '…', ':', '(']) && !span.starts_with('/');
        if is_path {
            named += 1;
            assert!(root().join(span).exists(), "ARCHITECTURE.md names {span}, which is not there");
        }
    }
    assert!(named > 12, "the check found only {named} paths");
}

/// The words of a schema that must not differ: names of tables, columns and indexes.
fn same_schema() {
    // Functions are what PostgreSQL alone has; other tests hold them.
    let without_functions = |text: String| {
        let parts = text.split("$body$;").map(|part| part.split(" FUNCTION ").next().unwrap_or_default().to_owned());
        parts.collect::<String>()
    };
    let words = |path: &str| -> Vec<String> {
        without_functions(read(path))
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"))
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                match words.as_slice() {
                    ["CREATE", "TABLE", name, ..] | ["CREATE", "INDEX", name, ..] => Some((*name).to_owned()),
                    ["CREATE", "UNIQUE", "INDEX", name, ..] => Some(format!("unique {name}")),
                    ["PRIMARY", ..] => Some(line.trim().to_owned()),
                    [column, _, ..] if line.starts_with("    ") => Some((*column).to_owned()),
                    _ => None,
                }
            })
            .collect()
    };
    for step in twiceproof_migrations_of("sqlite") {
        assert_eq!(
            words(&format!("migrations/sqlite/{step}")),
            words(&format!("migrations/postgres/{step}")),
            "{step}"
        );
    }
    assert_eq!(twiceproof_migrations_of("sqlite"), twiceproof_migrations_of("postgres"));
}

fn twiceproof_migrations_of(database: &str) -> Vec<String> {
    let folder = root().join("migrations").join(database);
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

async fn unique_indexes(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut reader = store.read().await.unwrap();
    let mut conn = reader.conn();
    let indexes: Vec<(String, String)> = match bed.database() {
        Database::Sqlite => conn
            .fetch_all(
                "SELECT t.name, (SELECT c.name FROM pragma_index_info(i.name) c WHERE c.seqno = 0)
                 FROM sqlite_master t JOIN pragma_index_list(t.name) i
                 WHERE t.type = 'table' AND i.\"unique\" = 1 ORDER BY 1",
                &[],
            )
            .await
            .unwrap(),
        Database::Postgres => conn
            .fetch_all(
                "SELECT c.relname::text, a.attname::text FROM pg_index i
                 JOIN pg_class c ON c.oid = i.indrelid
                 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
                 WHERE i.indisunique AND c.relnamespace = current_schema()::regnamespace ORDER BY 1",
                &[],
            )
            .await
            .unwrap(),
    };
    assert!(indexes.len() > 10, "{indexes:?}");
    for (table, first) in indexes {
        let expected = match table.as_str() {
            "twiceproof_organisations" | "twiceproof_workers" => "id",
            "twiceproof_migrations" => "version",
            "twiceproof_tenants" | "twiceproof_event_types" => "organisation",
            _ => "tenant",
        };
        assert_eq!(first, expected, "the unique index of {table} starts with {first}");
    }
}
