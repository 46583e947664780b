//! The guide: pages about whole tasks.

#[doc = include_str!("guide/metrics.md")]
pub mod metrics {
    #[cfg(test)]
    mod tests {
        use twiceproof_shared::metrics::METRICS;

        #[test]
        fn the_page_has_every_metric_as_the_table_of_the_code_has_it() {
            let page = include_str!("guide/metrics.md");
            let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `twiceproof_")).collect();
            assert_eq!(rows.len(), METRICS.len());
            for (row, metric) in rows.iter().zip(METRICS) {
                let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
                let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
                assert_eq!(cells, [&format!("`{}`", metric.name), metric.kind, &labels.join(", "), metric.help]);
            }
        }
    }
}

#[doc = include_str!("guide/sql.md")]
pub mod sql {}

#[doc = include_str!("guide/operational.md")]
pub mod operational {}

#[doc = include_str!("guide/signatures.md")]
pub mod signatures {}
