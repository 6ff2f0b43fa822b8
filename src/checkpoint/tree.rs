//! The tree that `repr` and the command line print: chains are joined, similar layers are folded, and long lists are cut.

use std::fmt::Write as _;
use std::ops::Range;

use super::Catalog;
use crate::names::{Child, join, natural};
use crate::tensor::TensorInfo;
use crate::text::{self, grouped, plural, size};

/// The maximum number of children shown per branch, after folding.
const SHOWN_CHILDREN: usize = 24;
/// Similar siblings are searched among at most this many weights: printing a tree must not take longer than opening the file.
const COMPARED_WEIGHTS: usize = 50_000;
/// The maximum width of a column; a longer name overflows it. A name of a megabyte must not widen every other line.
const COLUMN: usize = 100;
/// The maximum depth: a hostile name may have a million components.
const DEPTH: usize = 32;

/// Limits of a tree.
#[derive(Debug, Clone, Copy)]
pub struct TreeLimits {
    /// The maximum number of lines; `None` for all.
    pub lines: Option<usize>,
    /// Whether to fold similar siblings (numbered layers).
    pub fold: bool,
}

/// A branch or leaf.
#[derive(Debug)]
struct TreeNode {
    label: String,
    /// Dtype, shape and size, for a weight.
    detail: Option<[String; 3]>,
    weights: usize,
    bytes: u64,
    children: Vec<TreeNode>,
    /// A note about omitted children.
    omitted: Option<String>,
}

impl TreeNode {
    fn count(&self) -> String {
        plural(self.weights as u64, "weight")
    }

    fn summary(&self) -> String {
        format!("{}, {}", self.count(), size(self.bytes))
    }

    /// Dtype, shape and size; a branch has the number of its weights instead of the dtype.
    fn columns(&self) -> [String; 3] {
        self.detail.clone().unwrap_or_else(|| [self.count(), String::new(), size(self.bytes)])
    }
}

/// The tree of a prefix of a checkpoint.
#[derive(Debug)]
pub struct PrefixTree {
    root: TreeNode,
    lines: Option<usize>,
}

impl PrefixTree {
    /// The tree below `prefix`.
    pub fn new(catalog: &Catalog, prefix: &str, limits: TreeLimits) -> Self {
        let range = catalog.range(prefix);
        let title = if prefix.is_empty() { "(all)" } else { prefix };
        Self { root: branch(catalog, title.to_owned(), prefix, range, limits, DEPTH), lines: limits.lines }
    }

    /// The lines, and the number of omitted ones after them.
    pub fn lines(&self) -> (Vec<TreeLine>, usize) {
        let mut lines = vec![TreeLine::of(&self.root, String::new())];
        collect(&self.root, "", &mut lines);
        let hidden = self.lines.map_or(0, |most| lines.len().saturating_sub(most.max(2)));
        lines.truncate(lines.len() - hidden);
        (lines, hidden)
    }

    /// As text, one line per branch or weight.
    pub fn text(&self) -> String {
        let (lines, hidden) = self.lines();
        let width = |column: fn(&TreeLine) -> usize| {
            lines.iter().filter(|line| line.is_weight).map(|line| column(line).min(COLUMN)).max().unwrap_or(0)
        };
        let label = width(|line| line.branches.chars().count() + line.label.chars().count());
        let [dtype, shape] =
            [width(|line| line.columns[0].chars().count()), width(|line| line.columns[1].chars().count())];
        let mut text = String::new();
        for TreeLine { branches, label: name, columns: [first, second, third], is_weight } in &lines {
            if *is_weight {
                let label = label.saturating_sub(branches.chars().count());
                let _ = writeln!(text, "{branches}{name:label$}  {first:dtype$}  {second:shape$}  {third:>9}");
            } else {
                let _ = writeln!(text, "{branches}{name}  {third}");
            }
        }
        if hidden > 0 {
            let _ = writeln!(text, "… {hidden} more lines");
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// As HTML with folding branches and columns; every name is escaped. The page must supply the style of its classes.
    pub fn html(&self) -> String {
        let mut html = String::from("<div class=\"mw-tree\">");
        let mut left = self.lines.map_or(usize::MAX, |most| most.max(2));
        html_node(&self.root, 0, &mut left, &mut html);
        let hidden = self.lines().1;
        if hidden > 0 {
            html_row("div", &[&format!("… {hidden} more lines")], &mut html);
        }
        html.push_str("</div>");
        html
    }
}

fn branch(
    catalog: &Catalog,
    mut label: String,
    prefix: &str,
    range: Range<usize>,
    limits: TreeLimits,
    depth: usize,
) -> TreeNode {
    let (table, names) = (&catalog.table, &catalog.names);
    let own = range.clone().next().map(|position| names.entry(position)).filter(|&entry| table.name(entry) == prefix);
    let mut prefix = prefix.to_owned();
    let mut children: Vec<Child<'_>> = names.children(table, &prefix, range.clone()).collect();
    // A branch whose only child is a branch shares its line.
    let mut joined = 0;
    while own.is_none() && children.len() == 1 && !prefix.is_empty() && joined < DEPTH {
        let deeper = join(&prefix, children[0].component);
        if table.name(names.entry(range.start)) == deeper {
            break;
        }
        label = join(&label, children[0].component);
        children = names.children(table, &deeper, range.clone()).collect();
        prefix = deeper;
        joined += 1;
    }
    children.sort_by(|a, b| natural(a.component).cmp(&natural(b.component)));
    let bytes = range.clone().map(|position| table.get(names.entry(position)).bytes()).sum();
    let mut node = TreeNode {
        label,
        detail: own.map(|entry| detail(&table.get(entry))),
        weights: range.len(),
        bytes,
        children: Vec::new(),
        omitted: None,
    };
    let shown = if limits.lines.is_some() { SHOWN_CHILDREN } else { usize::MAX };
    let shown = if depth == 0 { 0 } else { shown };
    let mut next = 0;
    while next < children.len() {
        if node.children.len() == shown {
            let rest: usize = children[next..].iter().map(|child| child.range.len()).sum();
            node.omitted = Some(format!(
                "… {} more branches, {}",
                grouped((children.len() - next) as u64),
                plural(rest as u64, "weight")
            ));
            break;
        }
        let child = &children[next];
        let run = if limits.fold { alike(catalog, &prefix, &children[next..]) } else { 1 };
        if run == 1
            && let Some(leaf) = leaf(catalog, &prefix, child)
        {
            node.children.push(leaf);
            next += 1;
            continue;
        }
        let name = join(&prefix, child.component);
        let label = match run {
            1 => child.component.to_owned(),
            _ => format!("{}–{}", child.component, children[next + run - 1].component),
        };
        let mut made = branch(catalog, label, &name, child.range.clone(), limits, depth - 1);
        if run > 1 {
            made.label = format!("{} ({run} alike)", made.label);
            made.weights *= run;
            made.bytes = children[next..next + run]
                .iter()
                .flat_map(|child| child.range.clone())
                .map(|position| table.get(names.entry(position)).bytes())
                .sum();
        }
        node.children.push(made);
        next += run;
    }
    node
}

/// The child, if it is only a weight, as most are.
fn leaf(catalog: &Catalog, prefix: &str, child: &Child<'_>) -> Option<TreeNode> {
    let (table, names) = (&catalog.table, &catalog.names);
    let separator = usize::from(!prefix.is_empty());
    if child.range.len() != 1 {
        return None;
    }
    let info = table.get(names.entry(child.range.start));
    (info.name.len() == prefix.len() + separator + child.component.len()).then(|| TreeNode {
        label: child.component.to_owned(),
        detail: Some(detail(&info)),
        weights: 1,
        bytes: info.bytes(),
        children: Vec::new(),
        omitted: None,
    })
}

/// Dtype, shape and size.
fn detail(info: &TensorInfo<'_>) -> [String; 3] {
    // An unknown dtype is named by the file, so it is escaped.
    [text::escape(&info.element.to_string()), text::shape(info.shape), size(info.bytes())]
}

/// The number of first children with consecutive numbers whose weights have the same names, dtypes and shapes.
fn alike(catalog: &Catalog, prefix: &str, children: &[Child<'_>]) -> usize {
    let (table, names) = (&catalog.table, &catalog.names);
    let first = &children[0];
    let skip = |child: &Child<'_>| join(prefix, child.component).len();
    if first.component.parse::<u64>().is_err() || first.range.len() > COMPARED_WEIGHTS {
        return 1;
    }
    let mut compared = 0;
    let run = children.iter().take_while(|child| {
        compared += child.range.len();
        compared <= COMPARED_WEIGHTS
            && child.component.parse::<u64>().is_ok()
            && child.range.len() == first.range.len()
            && first.range.clone().zip(child.range.clone()).all(|(a, b)| {
                let (a, b) = (table.get(names.entry(a)), table.get(names.entry(b)));
                a.element == b.element && a.shape == b.shape && a.name.get(skip(first)..) == b.name.get(skip(child)..)
            })
    });
    run.count().max(1)
}

/// One line of a tree.
#[derive(Debug)]
pub struct TreeLine {
    /// The characters that connect it to the lines above.
    pub branches: String,
    /// The component of the name, or a summary of several; escaped.
    pub label: String,
    /// Dtype, shape and size of a weight; a branch has a summary in the last column.
    pub columns: [String; 3],
    /// Whether it is a weight, and not a branch.
    pub is_weight: bool,
}

impl TreeLine {
    fn of(node: &TreeNode, branches: String) -> Self {
        let columns = node.detail.clone().unwrap_or_else(|| [String::new(), String::new(), node.summary()]);
        Self { branches, label: text::escape(&node.label), columns, is_weight: node.detail.is_some() }
    }
}

fn collect(node: &TreeNode, indent: &str, lines: &mut Vec<TreeLine>) {
    let last = node.children.len() + usize::from(node.omitted.is_some());
    for (i, child) in node.children.iter().enumerate() {
        let (corner, line) = if i + 1 == last { ("└── ", "    ") } else { ("├── ", "│   ") };
        lines.push(TreeLine::of(child, format!("{indent}{corner}")));
        collect(child, &format!("{indent}{line}"), lines);
    }
    if let Some(omitted) = &node.omitted {
        let (branches, label) = (format!("{indent}└── "), omitted.clone());
        lines.push(TreeLine { branches, label, columns: Default::default(), is_weight: false });
    }
}

fn html_node(node: &TreeNode, depth: usize, left: &mut usize, html: &mut String) {
    if *left == 0 {
        return;
    }
    *left -= 1;
    let (label, [dtype, shape, size]) = (text::escape(&node.label), node.columns());
    if node.children.is_empty() {
        html_row("div", &[&label, &dtype, &shape, &size], html);
        return;
    }
    html.push_str(if depth < 2 { "<details open>" } else { "<details>" });
    html_row("summary", &[&label, &dtype, &shape, &size], html);
    for child in &node.children {
        html_node(child, depth + 1, left, html);
    }
    if let (Some(omitted), 1..) = (&node.omitted, *left) {
        *left -= 1;
        html_row("div", &[omitted], html);
    }
    html.push_str("</details>");
}

fn html_row(tag: &str, cells: &[&str], html: &mut String) {
    let _ = write!(html, "<{tag} class=\"mw-row\">");
    for cell in cells {
        // The space is for pages that remove the style.
        let _ = write!(html, "<span>{}</span> ", text::html(cell));
    }
    let _ = write!(html, "</{tag}>");
}
