//! Patterns against a plain model, which tries everything.
//!
//! The input is a pattern and a text with a newline between them.
#![no_main]

use fgraph::pattern::{LONGEST_GLOB, Pattern};
use libfuzzer_sys::fuzz_target;

/// What the model can still try in no time.
const LONGEST: usize = 48;

fuzz_target!(|input: &str| {
    let (written, text) = input.split_once('\n').unwrap_or((input, ""));
    let pattern = match Pattern::parse(written) {
        Ok(pattern) => pattern,
        Err(error) => {
            assert!(error.len == written.len() && error.len > LONGEST_GLOB);
            return;
        }
    };
    assert_eq!(pattern.text(), written);
    assert!(Pattern::verbatim(text).matches(text));
    let whole = pattern.matches(text);
    // In pieces it is the same text, wherever it is cut.
    for at in text.char_indices().map(|(at, _)| at).take(LONGEST) {
        let mut matcher = pattern.matcher();
        let goes_on = matcher.feed(&text[..at]);
        let settled = matcher.matched();
        assert!(matcher.feed(&text[at..]) <= goes_on);
        assert_eq!(matcher.matched(), whole, "{written:?} {text:?} cut at {at}");
        assert!(goes_on || settled == whole, "{written:?} {text:?} settled too early at {at}");
    }
    if written.len() <= LONGEST && text.len() <= LONGEST {
        let glob: Vec<char> = written.chars().collect();
        let text: Vec<char> = text.chars().collect();
        assert_eq!(whole, matches(&elements(&glob), &text), "{input:?}");
    }
});

/// One part of a pattern.
enum Element {
    Star,
    /// One character, of these ranges or not.
    One {
        ranges: Vec<(char, char)>,
        among: bool,
    },
}

fn elements(mut glob: &[char]) -> Vec<Element> {
    let mut elements = Vec::new();
    while let Some((first, rest)) = glob.split_first() {
        let just = |c: char| Element::One { ranges: vec![(c, c)], among: true };
        let (element, len) = match first {
            '*' => (Element::Star, 1),
            '?' => (Element::One { ranges: vec![], among: false }, 1),
            '\\' => rest.first().map_or((just('\\'), 1), |c| (just(*c), 2)),
            '[' => class(rest).map_or((just('['), 1), |(class, len)| (class, len + 1)),
            c => (just(*c), 1),
        };
        elements.push(element);
        glob = &glob[len..];
    }
    elements
}

/// The class that begins behind a `[`, and how many characters it has with its `]`.
fn class(text: &[char]) -> Option<(Element, usize)> {
    let negated = text.first() == Some(&'!');
    let start = usize::from(negated);
    // A `]` in first place is a member.
    let close = (start + 1..text.len()).find(|at| text[*at] == ']')?;
    let (mut ranges, mut members) = (Vec::new(), &text[start..close]);
    while let [low, rest @ ..] = members {
        if let ['-', high, rest @ ..] = rest {
            ranges.push((*low, *high));
            members = rest;
        } else {
            ranges.push((*low, *low));
            members = rest;
        }
    }
    Some((Element::One { ranges, among: !negated }, close + 1))
}

/// Row by row: which beginnings of the text the elements so far match.
fn matches(elements: &[Element], text: &[char]) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for element in elements {
        let mut next = vec![false; text.len() + 1];
        for at in 0..=text.len() {
            next[at] = match element {
                Element::Star => reached[..=at].contains(&true),
                Element::One { ranges, among } => {
                    at > 0
                        && reached[at - 1]
                        && ranges.iter().any(|(low, high)| (low..=high).contains(&&text[at - 1])) == *among
                }
            };
        }
        reached = next;
    }
    reached[text.len()]
}
