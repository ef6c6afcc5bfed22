//! Rust source as tokens: enough of the language to tell code from comments and literals, and to know what only
//! tests see. Used by the room rules.

/// An identifier, a lifetime, a literal, or one character of punctuation.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
    /// Inside an item that only test builds have.
    pub(crate) test: bool,
    /// The exported macro whose text this belongs to: it is compiled in other crates.
    pub(crate) exported: Option<String>,
}

impl Token {
    /// The content of a string literal.
    pub(crate) fn string(&self) -> Option<&str> {
        let start = self.text.find('"').filter(|_| !self.text.starts_with('\''))?;
        self.text[start + 1..].rsplit_once('"').map(|(content, _)| content)
    }
}

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = split(text);
    mark_tests(&mut tokens);
    mark_exported(&mut tokens);
    tokens
}

/// Whether the tokens from `at` on are these.
pub(crate) fn is(tokens: &[Token], at: usize, expected: &[&str]) -> bool {
    expected.iter().enumerate().all(|(n, text)| tokens.get(at + n).is_some_and(|token| token.text == *text))
}

/// The place behind the bracket that closes the one at `open`, or the end.
pub(crate) fn behind_group(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

fn split(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let (len, is_token) = next(rest, first);
        let (token, behind) = rest.split_at(len);
        if is_token {
            tokens.push(Token { text: token.to_owned(), line, test: false, exported: None });
        }
        line += token.matches('\n').count();
        rest = behind;
    }
    tokens
}

/// The length of what starts here, and whether it is a token.
fn next(rest: &str, first: char) -> (usize, bool) {
    let run = |of: fn(char) -> bool| rest.find(|c| !of(c)).unwrap_or(rest.len());
    let word = |c: char| c.is_alphanumeric() || c == '_';
    if first.is_whitespace() {
        return (run(char::is_whitespace), false);
    }
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), false);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), false);
    }
    if let Some(len) = raw_string(rest) {
        return (len, true);
    }
    let prefix = usize::from(["b\"", "c\"", "b'"].iter().any(|prefix| rest.starts_with(prefix)));
    match rest[prefix..].chars().next() {
        Some('"') => (prefix + quoted(&rest[prefix..], '"'), true),
        Some('\'') => (prefix + char_or_lifetime(&rest[prefix..]), true),
        _ if word(first) => (run(word), true),
        _ => (first.len_utf8(), true),
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|behind| behind.trim_start_matches('#').starts_with('"'))
    })?;
    let behind = &rest[prefix.len()..];
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    let start = prefix.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

/// The length of a literal with escapes, up to and with the second `quote`.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn char_or_lifetime(rest: &str) -> usize {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (_, Some('\'')) => quoted(rest, '\''),
        _ => 1 + rest[1..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len() - 1),
    }
}

/// The place behind the item that begins at `start`, attributes included. What the item is does not matter: it
/// ends with its first block or semicolon.
fn behind_item(tokens: &[Token], start: usize) -> usize {
    let mut at = start;
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            ";" => return at + 1,
            "{" => return behind_group(tokens, at),
            "(" | "[" => at = behind_group(tokens, at),
            // The end of what the item is in.
            ")" | "]" | "}" => return at,
            _ => at += 1,
        }
    }
    at
}

fn mark_tests(tokens: &mut [Token]) {
    for at in 0..tokens.len() {
        let inner = usize::from(is(tokens, at, &["#", "!", "["]));
        let condition = at + 2 + inner;
        if !is(tokens, at, &["#"])
            || !(is(tokens, condition, &["cfg", "(", "test", ")"])
                || is(tokens, condition, &["cfg", "(", "all", "(", "test", ","]))
        {
            continue;
        }
        let end = if inner == 1 { tokens.len() } else { behind_item(tokens, at + 1) };
        for token in &mut tokens[at..end] {
            token.test = true;
        }
    }
}

fn mark_exported(tokens: &mut [Token]) {
    for at in 0..tokens.len() {
        if !is(tokens, at, &["#", "[", "macro_export", "]"]) {
            continue;
        }
        let end = behind_item(tokens, at + 4);
        let name = tokens[at..end].iter().skip_while(|token| token.text != "macro_rules").nth(2);
        let name = name.map(|token| token.text.clone());
        for token in &mut tokens[at..end] {
            token.exported.clone_from(&name);
        }
    }
}

#[test]
fn comments_and_literals_are_no_words() {
    let text = r###"
        // word
        /* word /* word */ word */
        "word \" word" r#"word " word"# b"word" 'w' '\'' b'w' 'word: word_2 r"word"
    "###;
    let found: Vec<_> = tokens(text).into_iter().map(|token| (token.text, token.line)).collect();
    let expected = [
        r#""word \" word""#,
        r##"r#"word " word"#"##,
        r#"b"word""#,
        "'w'",
        r"'\''",
        "b'w'",
        "'word",
        ":",
        "word_2",
        r#"r"word""#,
    ];
    assert_eq!(found, expected.map(|text| (text.to_owned(), 4)));
}

#[test]
fn what_only_tests_see_is_known() {
    let text = "
        a;
        #[cfg(test)] extern crate t1;
        #[cfg(test)] #[macro_use(x)] use t2::{t3, t4};
        #[cfg(all(test, unix))] fn t5(t6: [u8; 2]) { if x { t7; } t8; }
        #[cfg(not(test))] b;
        mod c { #[cfg(test)] mod t9 { use t10; } d; }
        e
    ";
    for token in tokens(text) {
        if token.text.starts_with(|c: char| c.is_alphabetic()) && token.text.len() < 4 {
            let expected =
                token.text.starts_with('t') || ["x", "u8", "fn", "use", "all", "if"].contains(&&*token.text);
            assert!(token.test == expected || ["mod", "cfg", "not"].contains(&&*token.text), "{token:?}");
        }
    }
    assert!(tokens("#![cfg(test)]\nuse std::vec;").iter().all(|token| token.test));
}

#[test]
fn text_of_exported_macros_is_known() {
    let text =
        "#[macro_export] macro_rules! m { () => { asm!() }; } asm!(); macro_rules! n { () => { asm!() } }";
    let found: Vec<_> =
        tokens(text).into_iter().filter(|token| token.text == "asm").map(|token| token.exported).collect();
    assert_eq!(found, [Some("m".to_owned()), None, None]);
}
