/// Maximum number of names in one message.
const MAX_NAMES: usize = 5;

/// Returns the first names, and how many more there are.
pub(super) fn first_names<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let first: Vec<T> = names.by_ref().take(MAX_NAMES).collect();
    let first = first.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    match names.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::first_names;

    #[test]
    fn the_first_names_are_listed_and_the_others_counted() {
        let names = ["0", "1", "2", "3", "4", "5", "6"];
        assert_eq!(first_names(names), "0, 1, 2, 3, 4 and 2 more");
        assert_eq!(first_names(&names[..5]), "0, 1, 2, 3, 4");
    }
}
