//! "Did you mean …": the known name closest to a mistyped one.

/// The candidate with the fewest typing errors against `name`; none if all are too far away to be meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(errors, _)| *errors <= limit)
        .min_by_key(|(errors, _)| *errors)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance: characters inserted, dropped or changed.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, left) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, right) in right.iter().enumerate() {
            let changed = diagonal + usize::from(left != *right);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_finds_its_name_and_a_foreign_word_finds_none() {
        let known = ["tenant", "retry.first", "retry.factor"];
        assert_eq!(nearest("tennant", known), Some("tenant"));
        assert_eq!(nearest("retry.frist", known), Some("retry.first"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
