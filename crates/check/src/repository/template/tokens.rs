//! The tags of a template and the tokens in them, as Jinja reads them.

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TemplateToken<'t> {
    Name(&'t str),
    /// A text, with its escapes undone.
    Text(String),
    Number(f64),
    Sign(&'t str),
}

/// A token, where it is, and its line.
#[derive(Debug, Clone)]
pub(super) struct PlacedToken<'t> {
    pub(super) token: TemplateToken<'t>,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) line: usize,
}

/// The tokens of `{{ … }}` or `{% … %}`.
#[derive(Debug)]
pub(super) struct Tag<'t> {
    pub(super) is_block: bool,
    pub(super) tokens: Vec<PlacedToken<'t>>,
}

/// The tags of a template; the line is that of the first thing that does not end.
pub(super) fn tags(template: &str) -> (Vec<Tag<'_>>, Option<usize>) {
    let (mut tags, mut unended) = (Vec::new(), None);
    // Whether there are ends further on, which are looked for once.
    let (mut has_comment, mut has_raw) = (true, true);
    // Quotes of unterminated strings, whose ends are not searched again.
    let mut endless = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(start) = start_of_tag(template, at) {
        line += lines(template, at, start);
        let rest = template.get(start..).unwrap_or_default();
        if rest.starts_with("{#") {
            let end = has_comment.then(|| rest.find("#}").map(|end| start + end + 2)).flatten();
            has_comment = end.is_some();
            unended = unended.or(end.is_none().then_some(line));
            // One that does not end hides nothing.
            at = end.unwrap_or(start + 2);
            line += lines(template, start, at);
            continue;
        }
        let is_block = rest.starts_with("{%");
        // `{{-` takes the spaces before it away.
        let first = start + 2 + usize::from(rest.get(2..).is_some_and(|rest| rest.starts_with(['-', '+'])));
        let (tokens, end, is_whole) = tokens(template, first, if is_block { "%}" } else { "}}" }, line, &mut endless);
        unended = unended.or((!is_whole).then_some(line));
        line += lines(template, start, end);
        at = end;
        let is_raw = is_block && matches!(tokens.as_slice(), [word] if word.token == TemplateToken::Name("raw"));
        let end = (is_raw && has_raw).then(|| end_of_raw(template, at));
        has_raw &= end != Some(None);
        if let Some(end) = end.flatten() {
            line += lines(template, at, end);
            at = end;
            continue;
        }
        tags.push(Tag { is_block, tokens });
    }
    (tags, unended)
}

fn start_of_tag(template: &str, from: usize) -> Option<usize> {
    let rest = template.get(from..)?;
    let opens = |at: &usize| matches!(rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#'));
    rest.match_indices('{').map(|(at, _)| at).find(opens).map(|at| from + at)
}

/// The end of the raw text that begins after `{% raw %}`: the start of what follows `{% endraw %}`.
fn end_of_raw(template: &str, from: usize) -> Option<usize> {
    let rest = template.get(from..)?;
    rest.match_indices("{%").find_map(|(at, _)| {
        let tag = rest.get(at + 2..)?.trim_start_matches(['-', '+']).trim_start();
        let end = tag.strip_prefix("endraw")?.trim_start().trim_start_matches(['-', '+']).strip_prefix("%}")?;
        Some(template.len() - end.len())
    })
}

fn lines(template: &str, from: usize, to: usize) -> usize {
    template.get(from..to).unwrap_or_default().bytes().filter(|byte| *byte == b'\n').count()
}

/// The tokens up to the end of a tag, where that end is, and whether the tag and all texts in it end.
fn tokens<'t>(
    template: &'t str,
    from: usize,
    end: &str,
    line: usize,
    endless: &mut Vec<char>,
) -> (Vec<PlacedToken<'t>>, usize, bool) {
    let (mut at, mut line, mut depth, mut is_whole) = (from, line, 0_usize, true);
    let mut tokens = Vec::new();
    while let Some(c) = template.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = template.get(at..).unwrap_or_default();
        let ends = rest.starts_with(end) || rest.get(1..).is_some_and(|rest| rest.starts_with(end)) && "-+".contains(c);
        if depth == 0 && ends {
            return (tokens, at + end.len() + usize::from(!rest.starts_with(end)), is_whole);
        }
        let (token, len) = match c {
            c if c.is_whitespace() => (None, c.len_utf8()),
            '\'' | '"' if endless.contains(&c) => (Some(TemplateToken::Sign(rest.get(..1).unwrap_or_default())), 1),
            '\'' | '"' => {
                if let Some((text, len)) = text(rest, c) {
                    (Some(TemplateToken::Text(text)), len)
                } else {
                    endless.push(c);
                    is_whole = false;
                    (Some(TemplateToken::Sign(rest.get(..1).unwrap_or_default())), 1)
                }
            }
            c if c.is_ascii_digit() => {
                let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len());
                (Some(TemplateToken::Number(number(rest.get(..len).unwrap_or_default()))), len)
            }
            c if c.is_alphabetic() || c == '_' => {
                let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                (Some(TemplateToken::Name(rest.get(..len).unwrap_or_default())), len)
            }
            c => {
                let long = ["**", "//", "==", "!=", "<=", ">="].into_iter().find(|sign| rest.starts_with(sign));
                match c {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                let sign = rest.get(..long.map_or(c.len_utf8(), str::len)).unwrap_or_default();
                (Some(TemplateToken::Sign(sign)), sign.len())
            }
        };
        if let Some(token) = token {
            tokens.push(PlacedToken { token, start: at, end: at + len, line });
        }
        line += lines(template, at, at + len);
        at += len;
    }
    (tokens, template.len(), false)
}

/// The text that begins here, and its length in the template; `None` if it does not end.
fn text(rest: &str, quote: char) -> Option<(String, usize)> {
    let (mut is_escaped, mut end) = (false, None);
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => {
                end = Some(at);
                break;
            }
            _ => {}
        }
    }
    let end = end?;
    Some((decoded(rest.get(1..end)?), end + 1))
}

fn number(word: &str) -> f64 {
    let digits = word.replace('_', "");
    let based =
        [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)].into_iter().find_map(|(mark, base)| {
            Some(i64::from_str_radix(digits.strip_prefix(mark)?, base).map_or(f64::INFINITY, |number| number as f64))
        });
    based.or_else(|| digits.parse().ok()).unwrap_or(0.0)
}

/// The text with the escapes `\x5f`, `\u005f` and `\137` decoded; one by its name, `\N{LOW LINE}`, stays unchanged.
pub(super) fn decoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(rest.get(..at).unwrap_or_default());
        let after = rest.get(at + 1..).unwrap_or_default();
        let number = |skip: usize, len: usize, base: u32| {
            let digits = after.get(skip..skip + len)?;
            let code = u32::from_str_radix(digits, base).ok().and_then(char::from_u32)?;
            Some((code, skip + len))
        };
        let octal = || (1..=3).rev().find_map(|len| number(0, len, 8));
        let found = match after.chars().next() {
            Some('x') => number(1, 2, 16),
            Some('u') => number(1, 4, 16),
            Some('U') => number(1, 8, 16),
            Some('0'..='7') => octal(),
            Some('n') => Some(('\n', 1)),
            Some(c @ ('\'' | '"' | '\\')) => Some((c, 1)),
            _ => None,
        };
        let len = found.map_or_else(|| usize::from(after.starts_with('\n')), |(_, len)| len);
        match found {
            Some((c, _)) => out.push(c),
            // The line continues.
            None if len == 1 => {}
            None => out.push('\\'),
        }
        rest = after.get(len..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}
