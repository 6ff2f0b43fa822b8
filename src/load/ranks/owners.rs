//! The owner rank of each unit: of the ranks that need it, the one with the least to read so far, then on the node with the least.

use std::collections::HashMap;
use std::ops::Range;

use super::{ExchangePlan, Sharing};

/// The maximum that a rank reads per round.
const READ_FOR_A_ROUND: u64 = 64 << 20;
/// The owner of a unit that no rank needs.
pub(super) const NOBODY: u32 = u32::MAX;
/// Ranks are balanced if the maximum exceeds the mean by at most one part in `EVEN`.
const EVEN: u64 = 33;
/// The maximum number of steps of the balancing, which take a tenth of a second.
const STEPS: usize = 30_000_000;
/// The approximate maximum that a rank receives per round.
const GET_IN_A_ROUND: u64 = 256 << 20;

/// Distinct sets of ranks, and the load of each rank and node.
#[derive(Debug)]
pub(super) struct Owners {
    sets: Vec<Vec<u32>>,
    everyone: usize,
    by_coordinates: HashMap<(usize, Vec<Range<u32>>), usize>,
    by_parts: HashMap<Vec<u32>, usize>,
    by_ranks: HashMap<Vec<u32>, usize>,
    /// The index in `of_node` of each rank's node; per node, the number of ranks and their load.
    pub(super) node_of: Vec<usize>,
    pub(super) of_node: Vec<(u64, u64)>,
    of_rank: Vec<u64>,
}

impl Owners {
    pub(super) fn new(nodes: &[u32]) -> Self {
        let mut owners = Self {
            sets: Vec::new(),
            everyone: 0,
            by_coordinates: HashMap::new(),
            by_parts: HashMap::new(),
            by_ranks: HashMap::new(),
            node_of: Vec::with_capacity(nodes.len()),
            of_node: Vec::new(),
            of_rank: vec![0; nodes.len()],
        };
        let mut places: HashMap<u32, usize> = HashMap::new();
        for &node in nodes {
            let next = owners.of_node.len();
            let place = *places.entry(node).or_insert(next);
            if place == next {
                owners.of_node.push((0, 0));
            }
            owners.of_node[place].0 += 1;
            owners.node_of.push(place);
        }
        owners.everyone = owners.set((0..nodes.len() as u32).collect());
        owners
    }

    /// The number of a set of ranks, which must ascend.
    fn set(&mut self, ranks: Vec<u32>) -> usize {
        let next = self.sets.len();
        *self.by_ranks.entry(ranks).or_insert_with_key(|ranks| {
            self.sets.push(ranks.clone());
            next
        })
    }

    pub(super) fn each(&self, set: usize, each: impl FnMut(u32)) {
        self.sets[set].iter().copied().for_each(each);
    }
}

impl ExchangePlan {
    pub(super) fn assign_owners(&mut self) {
        for number in 0..self.units.len() {
            let (mut set, mut share) = (None, 0u64);
            let mut everyone = true;
            let mut more: Vec<u32> = Vec::new();
            for at in self.units[number].pieces.clone() {
                let (own, distinct) = self.consumers(at);
                let bytes = &self.pieces[at].bytes;
                share += (bytes.end - bytes.start).div_ceil(distinct);
                everyone &= distinct == 1 && own == self.owners.everyone;
                match set {
                    None => set = Some(own),
                    Some(before) if before == own || before == self.owners.everyone => {}
                    Some(_) => more.push(own as u32),
                }
            }
            let mut set = set.unwrap_or(self.owners.everyone);
            if !more.is_empty() {
                more.push(set as u32);
                more.sort_unstable();
                more.dedup();
                let mut ranks: Vec<u32> =
                    more.iter().flat_map(|&set| self.owners.sets[set as usize].iter().copied()).collect();
                ranks.sort_unstable();
                ranks.dedup();
                set = self.owners.set(ranks);
            }
            let owner = self.least(set);
            let unit = &mut self.units[number];
            if owner == NOBODY {
                unit.owner = owner;
                continue;
            }
            (unit.consumers, unit.share, unit.everyone, unit.owner) = (set, share, everyone, owner);
            let node = self.owners.node_of[owner as usize];
            self.owners.of_node[node].1 += unit.len;
            self.owners.of_rank[owner as usize] += unit.len;
        }
    }

    /// Balances the load: moves units from the rank with most to read to others that need them, as long as the maximum falls. With few units per
    /// rank, the greedy order leaves some ranks with one too many.
    pub(super) fn even_out(&mut self) {
        let world = self.owners.of_rank.len();
        let mut of_rank: Vec<Vec<u32>> = vec![Vec::new(); world];
        for (number, unit) in (0u32..).zip(&self.units) {
            if unit.owner != NOBODY {
                of_rank[unit.owner as usize].push(number);
            }
        }
        let mean = self.owners.of_rank.iter().sum::<u64>() / world.max(1) as u64;
        let mut steps = 0;
        while steps < STEPS {
            steps += world;
            let Some((most, &load)) = self.owners.of_rank.iter().enumerate().max_by_key(|(_, load)| **load) else {
                break;
            };
            if load <= mean + mean / EVEN {
                break;
            }
            // The unit, its new owner, the unit given in return, and the larger load of the two ranks after that.
            let mut best: Option<(u64, u32, usize, Option<u32>)> = None;
            for &number in &of_rank[most] {
                let unit = &self.units[number as usize];
                for &to in &self.owners.sets[unit.consumers] {
                    let (to, has) = (to as usize, self.owners.of_rank[to as usize]);
                    steps += 1;
                    if to == most || has >= load {
                        continue;
                    }
                    let mut see = |given: u64, back: Option<u32>| {
                        let then = (has + unit.len - given).max(load - unit.len + given);
                        if then < load && best.as_ref().is_none_or(|best| then < best.0) {
                            best = Some((then, number, to, back));
                        }
                    };
                    see(0, None);
                    for &other in &of_rank[to] {
                        let back = &self.units[other as usize];
                        steps += 1;
                        if back.len < unit.len && self.owners.sets[back.consumers].binary_search(&(most as u32)).is_ok()
                        {
                            see(back.len, Some(other));
                        }
                    }
                }
            }
            let Some((_, number, to, back)) = best else { break };
            self.give(&mut of_rank, number, to);
            if let Some(back) = back {
                self.give(&mut of_rank, back, most);
            }
        }
    }

    /// Moves a unit to another rank.
    fn give(&mut self, of_rank: &mut [Vec<u32>], number: u32, to: usize) {
        let unit = &mut self.units[number as usize];
        let from = std::mem::replace(&mut unit.owner, to as u32) as usize;
        of_rank[from].retain(|&other| other != number);
        of_rank[to].push(number);
        let owners = &mut self.owners;
        for (rank, sign) in [(from, 0), (to, 1)] {
            let node = owners.node_of[rank];
            for load in [&mut owners.of_rank[rank], &mut owners.of_node[node].1] {
                *load = if sign == 0 { *load - unit.len } else { *load + unit.len };
            }
        }
    }

    /// The rank of a set with the least to read; of several, the one on the node with the least. If nodes came first, the one rank of a node that is
    /// in its neighbours' sets would read everything.
    fn least(&self, set: usize) -> u32 {
        let load = |rank: u32| {
            let (ranks, bytes) = self.owners.of_node[self.owners.node_of[rank as usize]];
            (self.owners.of_rank[rank as usize], bytes / ranks.max(1), rank)
        };
        self.owners.sets[set].iter().map(|&rank| load(rank)).min().map_or(NOBODY, |(_, _, rank)| rank)
    }

    /// The ranks that need something of a piece, and the number of different parts among them.
    fn consumers(&mut self, at: usize) -> (usize, u64) {
        let piece = &self.pieces[at];
        let member = &self.members[piece.member as usize];
        // The rows that overlap the piece.
        let rows = member.shape.first().copied().unwrap_or(1);
        let row = (member.bytes / rows.max(1)).max(1);
        let even = member.bytes.is_multiple_of(rows.max(1));
        let rows = if even { piece.bytes.start / row..piece.bytes.end.div_ceil(row).min(rows) } else { 0..rows };
        match &member.sharing {
            Sharing::Everyone => (self.owners.everyone, 1),
            Sharing::Mesh(number) => {
                let mesh = &self.meshes[*number];
                let coordinates = mesh.coordinates(&member.shape, rows);
                let distinct = mesh.distinct(&coordinates);
                let key = (*number, coordinates);
                if let Some(&set) = self.owners.by_coordinates.get(&key) {
                    return (set, distinct);
                }
                let mut ranks = Vec::new();
                mesh.each(&key.1, |rank| ranks.push(rank));
                ranks.sort_unstable();
                let set = self.owners.set(ranks);
                self.owners.by_coordinates.insert(key, set);
                (set, distinct)
            }
            Sharing::Parts(parts) => {
                let has = |part: &Option<super::Region>| {
                    part.iter().flatten().all(|(axis, ranges)| {
                        let reach = if *axis == 0 { rows.clone() } else { 0..u64::MAX };
                        ranges.iter().any(|range| range.start.max(reach.start) < range.end.min(reach.end))
                    })
                };
                let key: Vec<u32> = (0u32..).zip(parts).filter(|(_, part)| has(part)).map(|(part, _)| part).collect();
                let is_whole = key.iter().all(|&part| parts[part as usize].is_none());
                let distinct = if is_whole { 1 } else { key.len().max(1) as u64 };
                if let Some(&set) = self.owners.by_parts.get(&key) {
                    return (set, distinct);
                }
                let ranks = (0..self.world()).filter(|&rank| key.contains(&self.part_of[rank as usize])).collect();
                let set = self.owners.set(ranks);
                self.owners.by_parts.insert(key, set);
                (set, distinct)
            }
        }
    }

    /// Groups units into rounds, in order, so that no rank reads or receives too much at once.
    pub(super) fn group_into_rounds(&mut self, size: Option<u64>) {
        let most = size.unwrap_or(READ_FOR_A_ROUND);
        let gets = size.map_or(GET_IN_A_ROUND, |size| size.saturating_mul(4));
        let mut reads: HashMap<u32, u64> = HashMap::new();
        let (mut first, mut got) = (0, 0u64);
        for number in 0..self.units.len() {
            let unit = &self.units[number];
            if unit.owner == NOBODY {
                continue;
            }
            let read = reads.get(&unit.owner).copied().unwrap_or(0);
            if number > first && ((read > 0 && read + unit.len > most) || got + unit.share > gets) {
                self.rounds.push(first..number);
                (first, got) = (number, 0);
                reads.clear();
            }
            *reads.entry(unit.owner).or_default() += unit.len;
            got += unit.share;
        }
        if first < self.units.len() {
            self.rounds.push(first..self.units.len());
        }
    }
}
