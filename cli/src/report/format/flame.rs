//! A flame graph as SVG: who called whom goes up, how long goes sideways. Nothing outside the file is needed to see it.

use std::io::{self, Write};

use super::stacks::Node;

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
const ROW: f64 = 16.0;
const TOP: f64 = 36.0;
/// Wide of a letter, and narrower than this nothing is drawn.
const LETTER: f64 = 6.6;
const NARROWEST: f64 = 0.3;

/// Text that XML does not take for its own.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// The same colour for the same name, between red and yellow.
fn colour(name: &str) -> String {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("rgb({},{},{})", 205 + hash % 50, 80 + (hash >> 8) % 130, 30 + (hash >> 16) % 40)
}

/// Writes the picture.
pub(super) fn write(out: &mut dyn Write, nodes: &[Node]) -> io::Result<()> {
    // Children come behind their parents, so one walk from the end adds up.
    let mut totals: Vec<u64> = nodes.iter().map(|node| node.own).collect();
    for at in (0..nodes.len()).rev() {
        let inside = nodes[at].children.iter().map(|child| totals[*child]).fold(0, u64::saturating_add);
        totals[at] = totals[at].saturating_add(inside);
    }
    let all = totals.first().copied().unwrap_or(0).max(1);
    let scale = (WIDTH - 2.0 * MARGIN) / all as f64;
    let mut boxes = Vec::new();
    let (mut todo, mut deepest) = (vec![(0_usize, 0_usize, 0_u64)], 0);
    while let Some((at, level, from)) = todo.pop() {
        if totals[at] as f64 * scale < NARROWEST {
            continue;
        }
        deepest = deepest.max(level);
        boxes.push((at, level, from));
        let mut children = nodes[at].children.clone();
        children.sort_by(|a, b| nodes[*a].name.cmp(&nodes[*b].name));
        let mut x = from;
        for child in children {
            todo.push((child, level + 1, x));
            x += totals[child];
        }
    }
    let height = TOP + (deepest + 1) as f64 * ROW + MARGIN;
    writeln!(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" \
         height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <title>Flame graph</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fffdf5\"/>\n\
         <text x=\"{}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\">Flame graph: {} us traced</text>",
        WIDTH / 2.0,
        all / 1000
    )?;
    for (at, level, from) in boxes {
        let node = &nodes[at];
        let (x, width) = (MARGIN + from as f64 * scale, totals[at] as f64 * scale);
        let y = height - MARGIN - (level + 1) as f64 * ROW;
        let name = escaped(&node.name);
        let share = totals[at] as f64 * 100.0 / all as f64;
        writeln!(
            out,
            "<g><title>{name}: {}.{:03} us, {share:.2} %, alone {}.{:03} us</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" rx=\"1\" fill=\"{}\"/>",
            totals[at] / 1000,
            totals[at] % 1000,
            node.own / 1000,
            node.own % 1000,
            ROW - 1.0,
            colour(&node.name)
        )?;
        let room = ((width - 4.0) / LETTER) as usize;
        if room >= 3 {
            let cut: String = node.name.chars().take(room).collect();
            let cut = if cut.len() < node.name.len() {
                cut.chars().take(room - 2).collect::<String>() + ".."
            } else {
                cut
            };
            writeln!(out, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 2.0, y + 11.5, escaped(&cut))?;
        }
        writeln!(out, "</g>")?;
    }
    writeln!(out, "</svg>")
}
