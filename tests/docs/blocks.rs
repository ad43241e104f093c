//! The fenced blocks of a page, and what stands around them.

/// One block.
#[derive(Debug)]
pub struct Block {
    /// Where its text begins.
    pub place: String,
    pub language: String,
    pub text: String,
    /// The paragraph above it, or nothing where another block is above it.
    pub above: String,
    /// The heading of the second level that it stands under.
    pub heading: String,
}

/// The blocks of a page, in order.
pub fn of(page: &str) -> Vec<Block> {
    let mut found = Vec::<Block>::new();
    let (mut is_open, mut is_new) = (false, true);
    let (mut above, mut heading) = (String::new(), String::new());
    for (number, line) in super::read(page).lines().enumerate() {
        match (is_open, line.strip_prefix("```")) {
            (false, Some(language)) => {
                found.push(Block {
                    place: format!("{page}:{}", number + 2),
                    language: language.to_owned(),
                    text: String::new(),
                    above: std::mem::take(&mut above),
                    heading: heading.clone(),
                });
                is_open = true;
            }
            (true, Some(_)) => is_open = false,
            (true, None) => found.last_mut().unwrap().text += &format!("{line}\n"),
            (false, None) if line.is_empty() => is_new = true,
            (false, None) => {
                if let Some(text) = line.strip_prefix("## ") {
                    heading = text.to_owned();
                }
                if std::mem::take(&mut is_new) {
                    above.clear();
                }
                above += &format!("{line} ");
            }
        }
    }
    assert!(!is_open, "a block of {page} does not end");
    found
}
