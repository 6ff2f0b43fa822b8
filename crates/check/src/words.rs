//! Lists of words, each one string: what other programs call things is data, and no code. And kinds of things, each with its words.

/// The words of a list.
pub(crate) fn each(list: &str) -> impl Iterator<Item = &str> {
    list.split_ascii_whitespace()
}

/// Whether a word is on a list.
pub(crate) fn has(list: &str, word: &str) -> bool {
    each(list).any(|listed| listed == word)
}

/// Makes an enum of a table: each variant with the words for it and, where these do not say it, what it is.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $variant:ident $word:literal $(, $what:literal)?;)* }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$of])* #[doc = concat!($word, $(": ", $what,)? ".")] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The words for it in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// The value that these words name.
            pub fn from_name(words: &str) -> Option<Self> {
                Self::ALL.iter().find(|known| known.name() == words).copied()
            }
        }
    };
}

pub(crate) use named;
