//! The measuring kit: every scenario, tiny. What it counts must add up; how long it took is nobody's business here.

use std::time::Duration;

use twiceproof::bench::{BenchOptions, Counts, Scenario};

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    for scenario in Scenario::ALL {
        suite.both(&format!("bench::{}_adds_up", scenario.name().replace('-', "_")), move |bed| tiny(bed, scenario));
    }
}

async fn tiny(bed: Bed, scenario: Scenario) {
    let mut options = BenchOptions::new(bed.db.url().clone());
    options.scenarios = vec![scenario];
    (options.events, options.rounds, options.connections, options.payload) = (40, 2, 4, 64);
    (options.duration, options.backlog) = (Duration::from_millis(800), 100);
    if scenario == Scenario::Resume {
        // Once: on PostgreSQL a dead worker is waited for.
        (options.rounds, options.program) = (1, Some(crate::kill::binary()));
    }
    let report = twiceproof::bench::run(&options, |_| {}).await.unwrap();
    let [result] = &report.results[..] else { panic!("{report:?}") };
    // What keeps a pace has as many events as fit into its time.
    let (subject, limit) = match scenario {
        Scenario::BesideSlow => (20, 20),
        Scenario::BlackHole | Scenario::BlackHoleConnect => (120, 40),
        Scenario::Resume => (40, 1),
        _ => (40, 40),
    };
    assert_eq!((result.scenario, result.subject.count), (scenario.name(), subject));
    assert!(result.adds_up(), "{result:?}");
    assert!(result.limits.iter().all(|one| one.count == limit), "{result:?}");
    let Counts { events, deliveries, delivered, effects, .. } = result.counts;
    let expected = match scenario {
        Scenario::Publish => (40, 40, 0, 0),
        Scenario::DrainTen | Scenario::EndToEndTen => (4, 40, 40, 0),
        Scenario::Receive => (0, 0, 0, 40),
        Scenario::BesideSlow => (40, 40, 40, 0),
        Scenario::BlackHole | Scenario::BlackHoleConnect => (160, 160, 160, 0),
        _ => (40, 40, 40, 0),
    };
    assert_eq!((events, deliveries, delivered, effects), expected);
    assert!(report.to_string().contains(scenario.name()));
}
