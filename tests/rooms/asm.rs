//! Assembly text as lines without comments, and with macros expanded. Used by the room rules.

use std::collections::HashMap;

/// A line of code.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The file that it stands in, also if a macro brought it elsewhere.
    pub(crate) path: String,
    pub(crate) number: usize,
    /// Numeric label in front of it.
    pub(crate) label: Option<u32>,
    /// Without comment and numeric label; never empty, unless there is a label.
    pub(crate) code: String,
}

impl Line {
    /// The arguments, if the line is this directive or macro.
    pub(crate) fn arguments(&self, directive: &str) -> Option<Vec<&str>> {
        let rest = self.code.strip_prefix(directive)?;
        (rest.is_empty() || rest.starts_with(char::is_whitespace))
            .then(|| rest.split([',', ' ']).map(str::trim).filter(|word| !word.is_empty()).collect())
    }

    /// The memory operands, brackets included, and with what is added to the register afterwards.
    pub(crate) fn memory_operands(&self) -> Vec<&str> {
        let mut operands = Vec::new();
        let mut from = 0;
        while let Some(open) = self.code[from..].find('[').map(|at| from + at) {
            let close = self.code[open..].find(']').map_or(self.code.len(), |at| open + at + 1);
            // What stands directly behind a register's name picks a lane of it.
            let lane = self.code[..open].ends_with(|c: char| c.is_alphanumeric());
            let added = self.code[close..].trim_start().starts_with(',') && self.code[close..].contains('#');
            if !lane {
                operands.push(&self.code[open..if added { self.code.len() } else { close }]);
            }
            from = close;
        }
        operands
    }
}

/// How a comment begins for this machine's assembler.
fn comment(path: &str) -> &'static str {
    if path.contains("arm64") { "//" } else { "#" }
}

/// The lines of a file that are not empty.
pub(crate) fn lines(path: &str, text: &str) -> Vec<Line> {
    let comment = comment(path);
    text.lines()
        .enumerate()
        .filter_map(|(at, line)| {
            let code = line.split(comment).next().unwrap_or_default().trim();
            let digits = code.len() - code.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let label = code[..digits].parse().ok().filter(|_| code[digits..].starts_with(':'));
            let code = if label.is_some() { code[digits + 1..].trim() } else { code };
            (label.is_some() || !code.is_empty()).then(|| Line {
                path: path.to_owned(),
                number: at + 1,
                label,
                code: code.to_owned(),
            })
        })
        .collect()
}

/// Whether the file begins with a comment.
pub(crate) fn has_head(path: &str, text: &str) -> bool {
    text.starts_with(comment(path))
}

/// The lines with each macro's body in the place of its calls, and without the definitions.
pub(crate) fn expand(lines: &[Line]) -> Vec<Line> {
    let mut macros: HashMap<&str, (Vec<&str>, Vec<Line>)> = HashMap::new();
    let mut expanded = Vec::new();
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        if let Some(words) = line.arguments(".macro") {
            let body: Vec<Line> =
                lines.by_ref().take_while(|line| line.arguments(".endm").is_none()).cloned().collect();
            if let Some((name, parameters)) = words.split_first() {
                // A macro called inside has been defined before.
                let body = body.iter().flat_map(|line| call(&macros, line)).collect();
                macros.insert(name, (parameters.to_vec(), body));
            }
        } else {
            expanded.extend(call(&macros, line));
        }
    }
    expanded
}

/// The line, or the body of the macro that it calls.
fn call(macros: &HashMap<&str, (Vec<&str>, Vec<Line>)>, line: &Line) -> Vec<Line> {
    let name = line.code.split_whitespace().next().unwrap_or_default();
    let (Some((parameters, body)), Some(arguments)) = (macros.get(name), line.arguments(name)) else {
        return vec![line.clone()];
    };
    let mut body = body.clone();
    for line in &mut body {
        for (parameter, argument) in parameters.iter().zip(&arguments) {
            line.code = line.code.replace(&format!("\\{parameter}"), argument);
        }
    }
    body
}

#[test]
fn macros_are_expanded() {
    let text = "
    .macro inner what
    use \\what, 1       // comment
    .endm
    .macro outer name, other
\\name:
2:  inner \\other
    .endm
    outer one, two
    last";
    let found: Vec<_> =
        expand(&lines("asm/arm64/a.s", text)).into_iter().map(|line| (line.number, line.code)).collect();
    assert_eq!(found, [(6, "one:"), (3, "use two, 1"), (10, "last")].map(|(n, code)| (n, code.to_owned())));
}

#[test]
fn memory_operands_are_found() {
    let line = |code: &str| lines("asm/arm64/a.s", code).remove(0);
    assert_eq!(line("2: stp x0, x1, [sp, #A + 8] // [x]").memory_operands(), ["[sp, #A + 8]"]);
    assert_eq!(line("ldr x0, [sp], #16").memory_operands(), ["[sp], #16"]);
    assert_eq!(line("str x0, [sp, #-16]!").memory_operands(), ["[sp, #-16]"]);
    assert_eq!(line("mov x0, v1.d[1]").memory_operands(), [""; 0]);
    assert_eq!(
        lines("asm/x86_64/a.s", "mov [rsp + 8], rax # [x]").remove(0).memory_operands(),
        ["[rsp + 8]"]
    );
}
