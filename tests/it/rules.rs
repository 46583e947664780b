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
/// Names of tables with those of their columns, and of indexes with what they are of.
type Schema = BTreeMap<String, BTreeSet<String>>;

fn same_schema() {
    let [mut sqlite, mut postgres] = [Schema::new(), Schema::new()];
    for step in twiceproof_migrations_of("sqlite") {
        apply(&mut sqlite, &read(format!("migrations/sqlite/{step}")));
        apply(&mut postgres, &read(format!("migrations/postgres/{step}")));
        assert_eq!(sqlite, postgres, "{step}");
    }
    assert!(sqlite.len() > 30, "{sqlite:?}");
    assert_eq!(twiceproof_migrations_of("sqlite"), twiceproof_migrations_of("postgres"));
}

/// What a step makes of a schema. Functions are what PostgreSQL alone has; other tests hold them.
fn apply(schema: &mut Schema, step: &str) {
    let lines = step.lines().filter(|line| !line.trim_start().starts_with("--"));
    let text = lines.map(|line| line.to_owned() + "\n").collect::<String>();
    let text: String = text.split("$body$;").map(|part| part.split(" FUNCTION ").next().unwrap_or_default()).collect();
    for statement in text.split(';') {
        let words: Vec<&str> = statement.split_whitespace().collect();
        match words.as_slice() {
            ["CREATE", "TABLE", name, ..] => {
                let columns = statement.split_once('(').unwrap().1;
                let columns = columns.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     "));
                let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
                schema.insert((*name).to_owned(), columns.map(first).collect());
            }
            ["CREATE", "INDEX", name, "ON", of @ ..] => drop(schema.insert((*name).to_owned(), [of.join(" ")].into())),
            ["CREATE", "UNIQUE", "INDEX", name, "ON", of @ ..] => {
                schema.insert((*name).to_owned(), [format!("unique {}", of.join(" "))].into());
            }
            ["ALTER", "TABLE", table, "ADD", "COLUMN", column, ..] => {
                schema.get_mut(*table).unwrap().insert((*column).to_owned());
            }
            ["ALTER", "TABLE", table, "RENAME", "TO", name] => {
                let columns = schema.remove(*table).unwrap();
                schema.insert((*name).to_owned(), columns);
            }
            ["DROP", "TABLE", table] => {
                // Its indexes go with it; those that are missed afterwards differ from the other database's.
                schema.remove(*table).unwrap();
                let of_table =
                    |of: &BTreeSet<String>| of.iter().any(|of| of.split_whitespace().any(|word| word == *table));
                schema.retain(|_, of| !of_table(of));
            }
            _ => {}
        }
    }
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
