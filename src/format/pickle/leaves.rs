//! Names for the values of a pickle: nested dicts become names with dots.

use std::collections::{HashMap, HashSet};

use super::ids::{ObjectId, TensorId};
use super::object::{PickleObject, PickleObjects};
use super::reach::leads_to_tensor;
use super::{MIN_NAME_BYTES, ParseStep, PickleLimits, Pickled, limit};
use crate::budget::{self, BLOCK_BYTES, MemoryPace};
use crate::error::{Diagnostic, Result};
use crate::format::escape;
use crate::rules;

/// The name of a tensor that is the whole pickle.
pub const ROOT_TENSOR: &str = "tensor";
/// The name of anything else that is the whole pickle and has no parts.
pub const ROOT_OBJECT: &str = "object";

/// What a leaf takes in memory in addition to the bytes of its name.
const LEAF_BYTES: usize = 40;
/// The memory of a leaf until it is in the table: in a growing list, in another and in a set to find duplicates, in the table.
const LIVE_LEAF_BYTES: usize = 240;
/// The same for a dimension of a tensor.
const LIVE_DIM_BYTES: usize = 2 * DIM_BYTES;
/// The memory of a dimension of a tensor for each of its names: a size and a stride.
const DIM_BYTES: usize = 16;
/// The attributes of a `torch.nn.Module` whose entries are directly below it.
const MODULE_PARTS: [&str; 3] = ["_parameters", "_buffers", "_modules"];
const LOCAL_TENSOR: &str = "_local_tensor";

/// A value with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// The name: the keys to the value, joined with dots.
    pub name: String,
    /// The value in the pickle, which may be a parameter or a tensor of a subclass.
    pub object: ObjectId,
    /// The tensor that it is.
    pub tensor: Option<TensorId>,
}

/// Names every tensor of a pickle, and every other value that is not a container of named ones: all leaves, in the order of the file, with unique
/// names.
///
/// - A dict gives its keys, joined with dots: `{"model": {"fc.weight": …}}` has `model.fc.weight`. Integers, booleans, `None` and UTF-8 bytes become
///   text as Python prints them. Any other key becomes the position of the entry in brackets, `[3]`.
/// - A list or tuple that leads to a tensor gives the indices of its elements. Any other is one leaf, as is an empty dict below the root.
/// - A placeholder ([`super::Opaque`]) is a leaf. Tensors in it have names below its name: attributes by name, arguments by index, items by key.
///   Those in the `_parameters`, `_buffers` and `_modules` of a module are directly below it, as in its state dict.
/// - A tensor of a subclass is a leaf. The tensors of its state have names below its name (of a `DTensor`, `_local_tensor` alone).
/// - A value that contains itself is a leaf where it recurs. If the root is a leaf, it is called [`ROOT_TENSOR`] or [`ROOT_OBJECT`].
///
/// Two tensors of one name (`{"a.b": …, "a": {"b": …}}`) are an error: which one a name means would be a guess. Of other values, the later gets a
/// number: `a.b#2`.
pub fn leaves(pickled: &Pickled, limits: &PickleLimits) -> Result<Vec<Leaf>> {
    let leads = leads_to_tensor(&pickled.objects, &pickled.budget);
    let walk = LeafWalk {
        objects: &pickled.objects,
        pickled,
        limits,
        leads: leads.map_err(|short| budget::error_of(short.into_fault(rules::PICKLE_MEMORY).into()))?,
        on_path: HashSet::new(),
        name: String::new(),
        leaves: Vec::new(),
        name_bytes: 0,
        live: 0,
        visited: 0,
        pace: MemoryPace::default(),
    };
    walk.run().and_then(unite).map_err(budget::error_of)
}

/// The most bytes that the names of a pickle's values may take.
pub fn name_limit(pickled: &Pickled, limits: &PickleLimits) -> usize {
    pickled.consumed.saturating_mul(limits.name_bytes_per_byte).saturating_add(MIN_NAME_BYTES)
}

/// The error for too many leaves.
pub fn too_many(pickled: &Pickled, limits: &PickleLimits) -> Diagnostic {
    let cause = format!(
        "the values of the pickle have more than {} names, or more than {} bytes of names, or more than memory allows",
        limits.leaves,
        name_limit(pickled, limits)
    );
    Diagnostic::new(rules::PICKLE_LEAVES, cause)
}

/// A container whose parts are being named.
struct LeafFrame {
    id: ObjectId,
    parts: std::vec::IntoIter<(String, ObjectId)>,
    /// The length of the container's own name.
    name_len: usize,
    /// The memory of the parts.
    bytes: usize,
}

struct LeafWalk<'a> {
    objects: &'a PickleObjects,
    pickled: &'a Pickled,
    limits: &'a PickleLimits,
    leads: Vec<bool>,
    on_path: HashSet<ObjectId>,
    name: String,
    leaves: Vec<Leaf>,
    name_bytes: usize,
    /// The current memory of names and open containers.
    live: usize,
    visited: usize,
    pace: MemoryPace,
}

impl LeafWalk<'_> {
    fn run(mut self) -> ParseStep<(Vec<Leaf>, Vec<u64>)> {
        let mut path: Vec<LeafFrame> = Vec::new();
        self.enter(self.pickled.root, &mut path)?;
        while let Some(frame) = path.last_mut() {
            let (id, name_len) = (frame.id, frame.name_len);
            let Some((key, part)) = frame.parts.next() else {
                self.live = self.live.saturating_sub(frame.bytes);
                path.pop();
                self.on_path.remove(&id);
                continue;
            };
            self.pace.step()?;
            self.name.truncate(name_len);
            self.name.try_reserve(key.len() + 1).map_err(|_| budget::Short::System(key.len()))?;
            if path.len() > 1 {
                self.name.push('.');
            }
            self.name.push_str(&key);
            if self.name.len() > self.name_limit() {
                return Err(self.too_many());
            }
            self.enter(part, &mut path)?;
        }
        let positions = budget::collected(self.leaves.iter().map(|leaf| self.position(leaf)))?;
        Ok((self.leaves, positions))
    }

    /// Names a value, or opens it to name its parts.
    fn enter(&mut self, id: ObjectId, path: &mut Vec<LeafFrame>) -> ParseStep<()> {
        let is_root = path.is_empty();
        let leads = self.leads.get(id.index()).copied().unwrap_or(false);
        let again = self.on_path.contains(&id);
        let opens = !again
            && match self.objects.get(id) {
                PickleObject::Dict(dict) => is_root || !dict.entries.is_empty(),
                PickleObject::List(_)
                | PickleObject::Tuple(_)
                | PickleObject::Parameter { .. }
                | PickleObject::Subclass { .. }
                | PickleObject::Opaque(_) => leads,
                _ => false,
            };
        let deep = opens && path.len() >= self.limits.depth;
        if deep && leads {
            return Err(limit("containers inside one another", self.limits.depth, self.first_tensor()));
        }
        let opens = opens && !deep;
        if !opens
            || !matches!(self.objects.get(id), PickleObject::Dict(_) | PickleObject::List(_) | PickleObject::Tuple(_))
        {
            self.leaf(id, is_root)?;
        }
        if opens {
            let parts = self.parts(id)?;
            self.on_path.insert(id);
            let bytes = parts.capacity() * size_of::<(String, ObjectId)>()
                + parts.iter().map(|(key, _)| key.len() + BLOCK_BYTES).sum::<usize>();
            self.live = self.live.saturating_add(bytes);
            if self.live > self.pickled.budget.left() {
                return Err(self.too_many());
            }
            path.push(LeafFrame { id, parts: parts.into_iter(), name_len: self.name.len(), bytes });
            if is_root {
                self.name.clear();
                if let Some(frame) = path.last_mut() {
                    frame.name_len = 0;
                }
            }
        }
        Ok(())
    }

    fn leaf(&mut self, object: ObjectId, is_root: bool) -> ParseStep<()> {
        let tensor = self.objects.tensor(object);
        let name = match (is_root, tensor) {
            (true, Some(_)) => ROOT_TENSOR.to_owned(),
            (true, None) => ROOT_OBJECT.to_owned(),
            _ => budget::text(&self.name)?,
        };
        let rank = tensor.and_then(|tensor| self.pickled.tensor(tensor).shape()).map_or(0, <[u64]>::len);
        self.name_bytes = self.name_bytes.saturating_add(name.len() + LEAF_BYTES + rank * DIM_BYTES);
        self.live = self.live.saturating_add(2 * name.len() + LIVE_LEAF_BYTES + rank * LIVE_DIM_BYTES);
        let memory = self.live > self.pickled.budget.left();
        if memory || self.name_bytes > self.name_limit() || self.leaves.len() >= self.limits.leaves {
            return Err(self.too_many());
        }
        budget::reserve(&mut self.leaves, 1)?;
        self.leaves.push(Leaf { name, object, tensor });
        Ok(())
    }

    fn name_limit(&self) -> usize {
        name_limit(self.pickled, self.limits)
    }

    fn too_many(&self) -> Box<Diagnostic> {
        too_many(self.pickled, self.limits).into()
    }

    /// The offset of the first tensor, at which limits on its nesting are reported.
    fn first_tensor(&self) -> u64 {
        self.pickled.tensors.first().map_or(0, |tensor| tensor.position)
    }

    fn position(&self, leaf: &Leaf) -> u64 {
        leaf.tensor.map_or(0, |tensor| self.pickled.tensor(tensor).position)
    }

    /// The parts of a value that get names, each with its addition to the name.
    fn parts(&mut self, id: ObjectId) -> ParseStep<Vec<(String, ObjectId)>> {
        let mut parts = LeafParts {
            objects: self.objects,
            leads: &self.leads,
            found: Vec::new(),
            bytes: 0,
            visited: 0,
            too_many: || self.too_many(),
            pace: self.pace.clone(),
            most_bytes: (self.name_limit().saturating_sub(self.name_bytes))
                .min(self.pickled.budget.left().saturating_sub(self.live)),
            most_visited: self.limits.leaves.saturating_sub(self.visited),
        };
        match self.objects.get(id) {
            PickleObject::Dict(_) => parts.entries(id, false),
            PickleObject::List(elements) => parts.elements(elements, false),
            PickleObject::Tuple(elements) => parts.elements(elements, false),
            PickleObject::Parameter { tensor, .. } => match self.objects.get(*tensor) {
                PickleObject::Subclass { class, state, .. } => parts.state(*state, self.is_distributed(*class)),
                PickleObject::Opaque(_) => parts.opaque(*tensor),
                _ => Ok(()),
            },
            PickleObject::Subclass { class, state, .. } => parts.state(*state, self.is_distributed(*class)),
            PickleObject::Opaque(_) => parts.opaque(id),
            _ => Ok(()),
        }?;
        let LeafParts { found, bytes, visited, most_bytes, pace, .. } = parts;
        self.pace = pace;
        self.visited = self.visited.saturating_add(visited);
        // Keys count again each time their dict is opened, so that a small file cannot have them copied without limit.
        self.name_bytes = self.name_bytes.saturating_add(bytes);
        if self.visited > self.limits.leaves || self.name_bytes > self.name_limit() || bytes > most_bytes {
            return Err(self.too_many());
        }
        Ok(found)
    }

    fn is_distributed(&self, class: super::GlobalId) -> bool {
        self.pickled.global(class).name == "DTensor"
    }
}

struct LeafParts<'a, F> {
    objects: &'a PickleObjects,
    leads: &'a [bool],
    found: Vec<(String, ObjectId)>,
    bytes: usize,
    visited: usize,
    too_many: F,
    pace: MemoryPace,
    most_bytes: usize,
    most_visited: usize,
}

impl<F: Fn() -> Box<Diagnostic>> LeafParts<'_, F> {
    /// Counts another value. Placeholders may share one long dict as their state, or one long key, so counting at the end would be too late.
    fn visit(&mut self) -> ParseStep<()> {
        self.visited = self.visited.saturating_add(1);
        self.pace.step()?;
        let fits = self.visited <= self.most_visited && self.bytes <= self.most_bytes;
        if fits { Ok(()) } else { Err((self.too_many)()) }
    }

    fn leads(&self, id: ObjectId) -> bool {
        self.leads.get(id.index()).copied().unwrap_or(false)
    }

    fn add(&mut self, key: String, id: ObjectId) -> ParseStep<()> {
        self.bytes = self.bytes.saturating_add(key.len() + LEAF_BYTES);
        budget::reserve(&mut self.found, 1)?;
        self.found.push((key, id));
        Ok(())
    }

    /// Adds the value of this key.
    fn keyed(&mut self, key: ObjectId, place: usize, id: ObjectId) -> ParseStep<()> {
        self.add(key_text(self.objects, key, place)?, id)
    }

    fn entries(&mut self, dict: ObjectId, tensors_only: bool) -> ParseStep<()> {
        let objects = self.objects;
        for (place, (key, value)) in objects.dict(dict).into_iter().flat_map(|dict| &dict.entries).enumerate() {
            self.visit()?;
            if !tensors_only || self.leads(*value) {
                self.keyed(*key, place, *value)?;
            }
        }
        Ok(())
    }

    fn elements(&mut self, elements: &[ObjectId], tensors_only: bool) -> ParseStep<()> {
        for (place, element) in elements.iter().enumerate() {
            self.visit()?;
            if !tensors_only || self.leads(*element) {
                self.add(place.to_string(), *element)?;
            }
        }
        Ok(())
    }

    /// Attributes: a dict, a pair of two (the second of slots), or a class's own representation.
    fn state(&mut self, state: ObjectId, local_only: bool) -> ParseStep<()> {
        let objects = self.objects;
        match objects.get(state) {
            PickleObject::Dict(_) => self.attributes(state, local_only),
            PickleObject::Tuple(pair) => match **pair {
                [first, second] if self.is_attributes(first) && self.is_attributes(second) => {
                    self.attributes(first, local_only)?;
                    self.attributes(second, local_only)
                }
                _ => self.elements(pair, true),
            },
            PickleObject::List(elements) => self.elements(elements, true),
            _ if self.leads(state) => self.add("state".to_owned(), state),
            _ => Ok(()),
        }
    }

    fn is_attributes(&self, id: ObjectId) -> bool {
        matches!(self.objects.get(id), PickleObject::Dict(_) | PickleObject::None)
    }

    fn attributes(&mut self, dict: ObjectId, local_only: bool) -> ParseStep<()> {
        let objects = self.objects;
        if local_only {
            // The dict is searched.
            self.visited = self.visited.saturating_add(objects.dict(dict).map_or(0, |dict| dict.entries.len()));
            return match objects.entry(dict, LOCAL_TENSOR).filter(|local| self.leads(*local)) {
                Some(local) => self.add(LOCAL_TENSOR.to_owned(), local),
                None => Ok(()),
            };
        }
        for (place, (key, value)) in objects.dict(dict).into_iter().flat_map(|dict| &dict.entries).enumerate() {
            self.visit()?;
            if !self.leads(*value) {
                continue;
            }
            match objects.text(*key) {
                Some(key) if MODULE_PARTS.contains(&key) && objects.dict(*value).is_some() => {
                    self.entries(*value, true)?;
                }
                _ => self.keyed(*key, place, *value)?,
            }
        }
        Ok(())
    }

    fn opaque(&mut self, id: ObjectId) -> ParseStep<()> {
        let Some(opaque) = self.objects.opaque(id) else { return Ok(()) };
        let arguments = opaque.arguments.and_then(|arguments| self.objects.elements(arguments)).unwrap_or_default();
        self.elements(arguments, true)?;
        for (place, (key, value)) in opaque.items.iter().enumerate() {
            self.visit()?;
            if self.leads(*value) {
                let place = arguments.len() + place;
                match key {
                    Some(key) => self.keyed(*key, place, *value)?,
                    None => self.add(place.to_string(), *value)?,
                }
            }
        }
        for state in &opaque.states {
            self.visit()?;
            self.state(*state, false)?;
        }
        Ok(())
    }
}

/// A key as part of a name.
fn key_text(objects: &PickleObjects, key: ObjectId, place: usize) -> Result<String, budget::Short> {
    Ok(match objects.get(key) {
        PickleObject::Text(slice) => return budget::text(objects.text_of(*slice)),
        PickleObject::Int(value) => value.to_string(),
        PickleObject::Bool(true) => "True".to_owned(),
        PickleObject::Bool(false) => "False".to_owned(),
        PickleObject::None => "None".to_owned(),
        PickleObject::Bytes(slice) => {
            return str::from_utf8(objects.bytes_of(*slice)).map_or_else(|_| Ok(format!("[{place}]")), budget::text);
        }
        PickleObject::NumpyScalar { .. } => {
            objects.numpy_integer(key).map_or_else(|| format!("[{place}]"), |key| key.to_string())
        }
        _ => format!("[{place}]"),
    })
}

/// Makes the names unique, or fails with the tensors that share one.
fn unite((mut leaves, positions): (Vec<Leaf>, Vec<u64>)) -> ParseStep<Vec<Leaf>> {
    let mut renames: Vec<(usize, String)> = Vec::new();
    {
        let mut taken: HashSet<&str> = HashSet::new();
        taken.try_reserve(leaves.len()).map_err(|_| budget::Short::System(leaves.len() * size_of::<&str>()))?;
        for (leaf, position) in leaves.iter().zip(positions).filter(|(leaf, _)| leaf.tensor.is_some()) {
            if !taken.insert(&leaf.name) {
                let cause = format!(
                    "two tensors get the name \"{}\"; each key of a nested dict stands for a part of a name",
                    escape(&leaf.name)
                );
                return Err(Diagnostic::new(rules::PICKLE_SAME_NAME, cause).tensor(&leaf.name).offset(position).into());
            }
        }
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let mut made: HashSet<String> = HashSet::new();
        let mut pace = MemoryPace::default();
        for (index, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.tensor.is_none()) {
            if taken.insert(&leaf.name) && !made.contains(&leaf.name) {
                continue;
            }
            let count = counts.entry(&leaf.name).or_insert(1);
            loop {
                *count += 1;
                pace.step()?;
                let name = format!("{}#{count}", leaf.name);
                if !taken.contains(&*name) && made.insert(name.clone()) {
                    budget::reserve(&mut renames, 1)?;
                    renames.push((index, name));
                    break;
                }
            }
        }
    }
    for (index, name) in renames {
        if let Some(leaf) = leaves.get_mut(index) {
            leaf.name = name;
        }
    }
    Ok(leaves)
}
