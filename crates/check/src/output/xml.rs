//! Text in XML 1.0.

/// The text as the content of an element or the value of an attribute. Characters that XML 1.0 does not have are replaced; ends of lines and tabs
/// are references, as readers take those of attributes for spaces.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&apos;"),
            '\t' => safe.push_str("&#9;"),
            '\n' => safe.push_str("&#10;"),
            '\r' => safe.push_str("&#13;"),
            c if is_legal(c) => safe.push(c),
            _ => safe.push('\u{fffd}'),
        }
    }
    safe
}

/// The same as the content of an element, of which readers keep the ends of lines.
pub(super) fn lines(text: &str) -> String {
    escaped(text).replace("&#10;", "\n")
}

/// Characters of XML 1.0 that are printed unchanged. C1 controls are legal, but nothing shows them.
fn is_legal(c: char) -> bool {
    matches!(c, '\u{20}'..='\u{7e}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_does_not_have_is_replaced() {
        assert_eq!(
            escaped("a\0\u{b}\u{1b}\u{7f}\u{85}\u{ffff}é"),
            "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}é"
        );
        assert_eq!(escaped("]]><a b=\"'&\n\">"), "]]&gt;&lt;a b=&quot;&apos;&amp;&#10;&quot;&gt;");
    }
}
