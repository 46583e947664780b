//! What the tests stand on: throw-away databases, one runtime each, and names under `sqlite::` and `postgres::`.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use twiceproof_shared::store::Database;
use twiceproof_shared::testing::{Cluster, ClusterError, TestDatabase};

/// The PostgreSQL cluster of this run, if there is one.
pub struct Databases(Arc<Result<Option<Cluster>, ClusterError>>);

impl Databases {
    /// Starts PostgreSQL, unless this run only lists the tests.
    pub fn start(arguments: &Arguments) -> Self {
        if arguments.list {
            return Self(Arc::new(Ok(None)));
        }
        let cluster = Cluster::start().map(Some);
        if let Err(error) = &cluster {
            println!("the tests under `postgres::` are ignored: {error}");
        }
        Self(Arc::new(cluster))
    }
}

/// One test's own database.
pub struct Bed {
    pub db: TestDatabase,
}

impl Bed {
    /// Which database this run of the test is for.
    pub fn database(&self) -> Database {
        self.db.url().database()
    }
}

/// The tests to be run.
pub struct Suite {
    databases: Arc<Result<Option<Cluster>, ClusterError>>,
    required: bool,
    trials: Vec<Trial>,
    names: [BTreeSet<String>; 2],
}

impl Suite {
    pub fn new(databases: &Databases) -> Self {
        let required = std::env::var("TWICEPROOF_TEST_POSTGRES").is_ok_and(|value| value == "require");
        Self { databases: Arc::clone(&databases.0), required, trials: Vec::new(), names: Default::default() }
    }

    /// A test that runs on both databases.
    pub fn both<F, R>(&mut self, name: &str, test: F)
    where
        F: Fn(Bed) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        self.sqlite(name, test.clone());
        self.postgres(name, test);
    }

    /// A test that runs on both databases where something is given, and is reported as ignored where it is not.
    pub fn both_given<G, F, R>(&mut self, given: &Option<G>, name: &str, test: F)
    where
        G: Clone + Send + 'static,
        F: Fn(Bed, G) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        self.sqlite(name, with_given(given, test.clone()));
        self.ignore_last(given.is_none());
        self.postgres_given(given, name, test);
    }

    /// The same for a test about PostgreSQL alone.
    pub fn postgres_given<G, F, R>(&mut self, given: &Option<G>, name: &str, test: F)
    where
        G: Clone + Send + 'static,
        F: Fn(Bed, G) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        self.postgres(name, with_given(given, test));
        self.ignore_last(given.is_none());
    }

    fn ignore_last(&mut self, ignore: bool) {
        if ignore && let Some(trial) = self.trials.pop() {
            self.trials.push(trial.with_ignored_flag(true));
        }
    }

    /// A test that says something about SQLite alone; its name is listed in `ONLY_SQLITE`.
    pub fn sqlite<F, R>(&mut self, name: &str, test: F)
    where
        F: Fn(Bed) -> R + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        self.sqlite_where(true, name, test);
    }

    /// As [`Suite::sqlite`]; reported as ignored where this machine does not allow what it needs.
    pub fn sqlite_where<F, R>(&mut self, allowed: bool, name: &str, test: F)
    where
        F: Fn(Bed) -> R + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        self.names[0].insert(name.to_owned());
        let trial = Trial::test(format!("sqlite::{name}"), move || {
            block_on(async {
                test(Bed { db: TestDatabase::sqlite() }).await;
                Ok(())
            })
        });
        self.trials.push(trial.with_ignored_flag(!allowed));
    }

    /// A test that says something about PostgreSQL alone; its name is listed in `ONLY_POSTGRES`.
    pub fn postgres<F, R>(&mut self, name: &str, test: F)
    where
        F: Fn(Bed) -> R + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        self.names[1].insert(name.to_owned());
        let databases = Arc::clone(&self.databases);
        let missing = self.databases.is_err();
        let trial = Trial::test(format!("postgres::{name}"), move || {
            block_on(async {
                let cluster = match &*databases {
                    Ok(Some(cluster)) => cluster,
                    Ok(None) => return Err("the cluster was not started".into()),
                    Err(error) => return Err(error.to_string().into()),
                };
                let db = TestDatabase::postgres(cluster).await?;
                test(Bed { db }).await;
                Ok(())
            })
        });
        self.trials.push(trial.with_ignored_flag(missing && !self.required));
    }

    /// A test that needs no database.
    pub fn plain(&mut self, name: &str, test: impl FnOnce() + Send + 'static) {
        self.trials.push(Trial::test(name.to_owned(), move || {
            test();
            Ok(())
        }));
    }

    /// The same where something is given; it is reported as ignored where it is not.
    pub fn plain_given<G: Clone + Send + 'static>(
        &mut self,
        given: &Option<G>,
        name: &str,
        test: impl FnOnce(G) + Send + 'static,
    ) {
        let (given, missing) = (given.clone(), given.is_none());
        self.plain(name, move || test(given.expect("tests that miss what they need are ignored")));
        self.ignore_last(missing);
    }

    pub fn into_trials(mut self) -> Vec<Trial> {
        let names = self.names.clone();
        self.plain("both_databases_have_the_same_tests", move || {
            let only = |own: &BTreeSet<String>, other: &BTreeSet<String>| -> Vec<String> {
                own.difference(other).cloned().collect()
            };
            assert_eq!(only(&names[0], &names[1]), ONLY_SQLITE, "tests that only SQLite has");
            assert_eq!(only(&names[1], &names[0]), ONLY_POSTGRES, "tests that only PostgreSQL has");
        });
        self.trials
    }
}

/// Tests about what only SQLite has: group commit, the write permit, the one worker of a file.
const ONLY_SQLITE: &[&str] = &[
    "dispatch::a_second_worker_on_one_file_is_refused",
    "faults::a_full_disk_takes_nothing_and_loses_nothing",
    "hostile::a_batch_closes_with_the_error_of_a_deferred_constraint",
    "hostile::a_handler_cannot_commit_by_itself",
    "hostile::nothing_is_accepted_into_a_deleted_file",
    "hostile::nothing_is_written_behind_a_transaction_that_sqlite_rolled_back",
    "hostile::work_that_nobody_waits_for_any_more_is_not_begun",
    "log::readers_that_overlap_do_not_let_the_write_ahead_log_grow",
    "log::the_write_ahead_log_comes_down_after_a_long_reader",
    "seam::a_host_connection_that_could_lose_commits_is_refused",
    "seam::rel_b56_a_host_transaction_takes_the_write_lock_at_once",
    "units::a_second_process_gets_the_lock_while_batches_run",
    "units::a_unit_that_commits_by_itself_is_told_so",
    "units::a_unit_that_rolls_the_outer_transaction_back_harms_no_other",
    "units::queued_units_share_one_commit",
    "workers::a_second_worker_on_one_file_is_told_who_has_it_and_what_to_do",
];

/// Tests about what only PostgreSQL has: failed transactions, advisory locks, a server that goes away.
const ONLY_POSTGRES: &[&str] = &[
    "api_endpoints::send_c10_a_uid_that_an_open_transaction_takes_is_waited_for",
    "commits::a_host_is_told_that_its_commit_is_unknown",
    "commits::an_unknown_commit_stays_unknown_while_the_database_is_away",
    "commits::an_unknown_commit_that_events_shared_stays_unknown_for_each",
    "commits::rel_b49_an_unknown_commit_that_did_not_happen_runs_again",
    "commits::rel_b49_an_unknown_commit_that_happened_is_answered_from_the_ledger",
    "crash::rel_b27_postgres_killed_under_load_loses_and_doubles_nothing",
    "faults::rel_b50_a_read_only_database_takes_nothing_and_goes_on_afterwards",
    "functions::an_event_from_sql_for_many_endpoints_is_left_to_the_workers",
    "functions::an_event_from_sql_lives_and_dies_with_its_transaction",
    "functions::an_event_from_sql_makes_the_rows_that_the_library_makes",
    "functions::ids_from_sql_are_ids_in_the_order_of_time",
    "functions::tables_are_found_whatever_the_search_path_says",
    "functions::the_same_uid_is_the_same_event_or_a_conflict",
    "functions::what_breaks_a_rule_is_refused_by_name",
    "growth::a_claim_does_not_walk_over_what_was_delivered_under_a_held_snapshot",
    "hostile::a_host_commit_of_a_failed_transaction_is_an_error",
    "hostile::statements_that_were_given_up_do_not_stay_on_the_server",
    "idempotency::a_failed_statement_cannot_pass_for_an_effect",
    "idempotency::rel_b49_a_commit_that_got_no_answer_is_looked_up_and_never_run_twice",
    "kill::rel_b26_a_worker_stopped_past_its_lease_changes_nothing_when_it_goes_on",
    "languages::node_publishes_in_its_own_transaction",
    "languages::psql_publishes_in_its_own_transaction",
    "ledger::a_failed_transaction_cannot_finish",
    "ledger::an_uncommitted_twin_is_in_flight_without_waiting",
    "ordering::a_newcomer_beside_the_end_of_the_one_before_it_is_not_forgotten",
    "ordering::the_order_holds_while_workers_are_killed",
    "ordering::the_order_is_that_of_the_commits",
    "publish::an_event_that_waits_for_a_host_keeps_no_other_waiting",
    "receive::a_handler_that_commits_by_itself_is_never_run_again",
    "seam::a_commit_of_a_failed_transaction_is_an_error",
    "together::events_at_the_same_time_share_a_transaction_where_the_host_allows_it",
    "together::slow_handlers_still_run_side_by_side",
    "wake::a_lost_listener_is_made_up_for_by_polling_and_comes_back",
    "wake::a_storm_of_wake_ups_is_told_a_few_times",
    "wake::another_schema_is_not_woken",
    "wake::nothing_is_told_where_only_the_own_process_listens",
    "workers::three_workers_of_which_one_is_killed_again_and_again_lose_nothing",
    "workers::workers_that_are_restarted_in_turn_send_nothing_twice",
];

/// A test that is handed what it needs.
fn with_given<G, F, R>(given: &Option<G>, test: F) -> impl Fn(Bed) -> R + Clone + Send + 'static
where
    G: Clone + Send + 'static,
    F: Fn(Bed, G) -> R + Clone + Send + 'static,
{
    let given = given.clone();
    move |bed| test(bed, given.clone().expect("tests that miss what they need are ignored"))
}

fn block_on<F: Future<Output = Result<(), Failed>>>(test: F) -> Result<(), Failed> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(test)
}
