//! Which functions of a program run as soon as it is imported: those that its own level calls, and those that they call.

use std::collections::{HashMap, HashSet};

/// How a function comes to be called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// `name()`, of a function or a class.
    Called(String),
    /// `f(name)`, or a decorator.
    Passed(String),
    /// `something.name()`.
    Method(String),
}

/// Where something stands: on the program's own level, or in the outermost function around it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Place {
    pub(super) class: Option<String>,
    pub(super) function: Option<String>,
    /// Below `if __name__ == "__main__"`.
    pub(super) is_main: bool,
}

impl Place {
    pub(super) fn is_import(&self) -> bool {
        self.function.is_none() && !self.is_main
    }
}

/// Methods that Python calls by itself when a class is made or used.
const BY_ITSELF: [&str; 5] = ["__init_subclass__", "__set_name__", "__prepare__", "__class_getitem__", "__getattr__"];
/// Methods that calling a class calls.
const BY_CALL: [&str; 4] = ["__init__", "__new__", "__post_init__", "__call__"];

/// Places by the name of their function, or of their class.
type Index<'f> = HashMap<&'f str, Vec<&'f Place>>;

/// The places that run at import, of all functions and of what each place calls.
pub(super) fn at_import(functions: &HashSet<Place>, ways: &HashMap<Place, Vec<Way>>) -> HashSet<Place> {
    let mut reached: HashSet<Place> = HashSet::new();
    let mut waiting: Vec<&Place> = ways.keys().filter(|place| place.is_import()).collect();
    let own =
        |place: &&Place| place.function.as_deref().is_some_and(|name| BY_ITSELF.contains(&name)) && !place.is_main;
    waiting.extend(functions.iter().filter(own));
    let (mut by_name, mut by_class): (Index<'_>, Index<'_>) = Default::default();
    for place in functions.iter().filter(|place| !place.is_main) {
        by_name.entry(place.function.as_deref().unwrap_or_default()).or_default().push(place);
        by_class.entry(place.class.as_deref().unwrap_or_default()).or_default().push(place);
    }
    let mut followed: HashSet<&Way> = HashSet::new();
    while let Some(place) = waiting.pop() {
        if !reached.insert(place.clone()) {
            continue;
        }
        for way in ways.get(place).into_iter().flatten().filter(|way| followed.insert(*way)) {
            let (name, is_method) = match way {
                Way::Called(name) | Way::Passed(name) => (name.as_str(), false),
                Way::Method(name) => (name.as_str(), true),
            };
            let named = by_name.get(name).into_iter().flatten().filter(|place| place.class.is_some() == is_method);
            waiting.extend(named);
            if let Way::Called(class) = way {
                let methods = by_class.get(class.as_str()).into_iter().flatten();
                let called = |place: &&&Place| place.function.as_deref().is_some_and(|name| BY_CALL.contains(&name));
                waiting.extend(methods.filter(called));
            }
        }
    }
    reached
}
