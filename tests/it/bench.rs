//! The measuring kit: every scenario, tiny. What it counts must add up; how long it took is nobody's business here.

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
    let report = twiceproof::bench::run(&options, |_| {}).await.unwrap();
    let [result] = &report.results[..] else { panic!("{report:?}") };
    assert_eq!((result.scenario, result.subject.count), (scenario.name(), 40));
    assert!(result.adds_up(), "{result:?}");
    assert!(result.limits.iter().all(|limit| limit.count == 40), "{result:?}");
    let Counts { events, deliveries, delivered, effects, .. } = result.counts;
    let expected = match scenario {
        Scenario::Publish => (40, 40, 0, 0),
        Scenario::DrainTen | Scenario::EndToEndTen => (4, 40, 40, 0),
        Scenario::Receive => (0, 0, 0, 40),
        _ => (40, 40, 40, 0),
    };
    assert_eq!((events, deliveries, delivered, effects), expected);
    assert!(report.to_string().contains(scenario.name()));
}
