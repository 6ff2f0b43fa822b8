//! Tests of whole plans.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// The byte of a file at an offset, in these tests.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn image(plan: &ExchangePlan, extents: &[ReadExtent], len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    for extent in extents {
        let start = match extent.source {
            UnitSource::File(_, start) => start,
            UnitSource::Tensor(member) => 1_000_000 + u64::from(member) * 1000, // somewhere else
        };
        let size = extent.len.min(len - extent.at);
        (0..size).for_each(|i| bytes[(extent.at + i) as usize] = byte(start + i));
    }
    assert!(extents.iter().map(|extent| extent.at + extent.len).max().unwrap_or(0) <= len, "{plan:?}");
    bytes
}

fn apply(one: &RegionCopy, from: &[u8], to: &mut [u8]) {
    for row in 0..one.rows {
        let (start, end) = ((one.from + row * one.from_stride) as usize, (one.to + row * one.to_stride) as usize);
        to[end..end + one.len as usize].copy_from_slice(&from[start..start + one.len as usize]);
    }
}

/// Executes a plan for all ranks; returns each rank's bytes of each tensor.
fn run(plan: &ExchangePlan) -> Vec<Vec<Vec<u8>>> {
    let world = plan.world();
    let mut parts: Vec<Vec<Vec<u8>>> = (0..world)
        .map(|rank| {
            let size = |member| plan.part_of_rank(member, rank).expect("a part").map_or(0, |(bytes, _)| bytes) as usize;
            (0..plan.members.len()).map(|member| vec![0xEE; size(member)]).collect()
        })
        .collect();
    let last = plan.last_rounds();
    for number in 0..plan.rounds() {
        let rounds: Vec<Round> = (0..world).map(|rank| plan.round(number, rank).expect("a round")).collect();
        let units: BTreeMap<u32, Vec<u8>> = rounds
            .iter()
            .flat_map(|round| round.reads.iter().map(|(unit, len, extents)| (*unit, image(plan, extents, *len))))
            .collect();
        // By sender and receiver: the message, and how much of it was received.
        let mut messages: BTreeMap<(u32, u32), (Vec<u8>, u64)> = BTreeMap::new();
        for (rank, round) in (0u32..).zip(&rounds) {
            for one in round.transfers.iter().filter(|one| one.action == RoundAction::Send) {
                let (message, left) = messages.entry((rank, one.rank)).or_default();
                assert_eq!(message.len() as u64, one.rows.to, "rows follow each other");
                *left += one.rows.bytes();
                message.resize(*left as usize, 0);
                apply(&one.rows, &units[&one.unit], message);
            }
        }
        for (rank, round) in (0u32..).zip(&rounds) {
            for Transfer { action, rank: peer, unit, tensor, rows } in &round.transfers {
                let mine = &mut parts[rank as usize][*tensor as usize];
                match action {
                    RoundAction::Keep | RoundAction::Take => apply(rows, &units[unit], mine),
                    RoundAction::Receive => {
                        let (message, left) = messages.get_mut(&(*peer, rank)).expect("what is waited for is sent");
                        assert_eq!(message.len() as u64 - *left, rows.from, "rows follow each other");
                        *left -= rows.bytes();
                        apply(rows, message, mine);
                    }
                    RoundAction::Broadcast => {
                        assert_eq!(units[unit].len() as u64, rows.len);
                        assert!(rounds[*peer as usize].reads.iter().any(|(read, ..)| read == unit), "by its owner");
                        continue;
                    }
                    RoundAction::Read | RoundAction::Send => continue,
                }
                assert!(number <= last[*tensor as usize], "all ranks have it earlier");
            }
        }
        assert!(messages.values().all(|(_, left)| *left == 0), "every sent byte is received");
    }
    parts
}

fn expected(member: &PlannedTensor, runs: Option<&AxisRanges>, start: u64) -> Vec<u8> {
    let Some(runs) = runs else { return Vec::new() };
    let mut all = vec![0u64];
    for (&size, runs) in member.shape.iter().zip(runs) {
        let positions: Vec<u64> = runs.iter().cloned().flatten().collect();
        all = all.iter().flat_map(|&at| positions.iter().map(move |position| at * size + position)).collect();
    }
    all.iter().flat_map(|&at| (0..member.unit.1).map(move |i| byte(start + at * member.unit.1 + i))).collect()
}

fn split() -> impl Strategy<Value = MeshSplit> {
    prop_oneof![
        Just(MeshSplit::Replicate),
        (0usize..2).prop_map(|axis| MeshSplit::Shard { axis }),
        (0usize..2, 1u64..4).prop_map(|(axis, factor)| MeshSplit::Strided { axis, factor }),
    ]
}

proptest! {
    #[test]
    fn every_rank_gets_its_parts_and_every_byte_is_read_once(
        shapes in prop::collection::vec((0u64..9, 0u64..9, 1u64..3, 0u8..5), 1..8),
        splits in prop::collection::vec((split(), split()), 3),
        unit in 1u64..120, round in 1u64..200, nodes in 1u32..3, absent in any::<bool>(),
    ) {
        let world = if absent { 4 } else { 6 };
        let ranks = if absent { vec![0, 2, ABSENT, 1, ABSENT, 3] } else { vec![0, 2, 4, 1, 3, 5] };
        let meshes: Vec<Mesh> = splits.iter().map(|&(one, two)| {
            Mesh::new(world, ranks.clone(), vec![3, 2], vec![one, two]).expect("a mesh")
        }).collect();
        let mut at = 100;
        let (mut members, mut starts) = (Vec::new(), Vec::new());
        for (number, &(rows, columns, size, kind)) in shapes.iter().enumerate() {
            let sharing = match kind {
                0 => Sharing::Everyone,
                1 => Sharing::Parts(vec![None, Some(vec![(1, vec![columns / 2..columns, 0..columns / 3])]), Some(vec![(0, vec![0..0])])]),
                kind => Sharing::Mesh(kind as usize - 2),
            };
            let place = (number % 4 != 3).then_some((0, at));
            starts.push(if place.is_some() { at } else { 1_000_000 + number as u64 * 1000 });
            members.push(PlannedTensor::new(vec![rows, columns], (1, size), place, sharing).expect("a tensor"));
            at += rows * columns * size + (number as u64 % 2) * 5000;
        }
        let part_of = vec![0, 1, 2, 1, 0, 2][..world as usize].to_vec();
        let of_node = (0..world).map(|rank| rank % nodes).collect();
        let sizes = RankSizes { unit: Some(unit), round: Some(round) };
        let plan = ExchangePlan::new(members.clone(), meshes.clone(), part_of.clone(), of_node, sizes).expect("a plan");
        let made = run(&plan);
        for (number, member) in members.iter().enumerate() {
            for rank in 0..world {
                let whole: AxisRanges = member.shape.iter().map(|&size| vec![0..size]).collect();
                let runs = match &member.sharing {
                    Sharing::Everyone => Some(whole),
                    Sharing::Mesh(mesh) => meshes[*mesh].runs(rank, &member.shape),
                    Sharing::Parts(parts) => {
                        let mut runs = whole;
                        for (axis, ranges) in parts[part_of[rank as usize] as usize].iter().flatten() {
                            runs[*axis].clone_from(ranges);
                        }
                        Some(runs)
                    }
                };
                let expected = expected(member, runs.as_ref(), starts[number]);
                prop_assert_eq!(&made[rank as usize][number], &expected, "rank {} of tensor {}", rank, number);
            }
        }
        let read: u64 = plan.costs().read.iter().sum();
        let tensors: u64 = members.iter().map(|member| member.bytes).sum();
        let gaps: u64 = plan.units.iter().map(|unit| unit.len - plan.pieces[unit.pieces.clone()].iter().map(|piece| piece.bytes.end - piece.bytes.start).sum::<u64>()).sum();
        if absent {
            prop_assert!(read <= tensors + gaps);
        } else {
            prop_assert_eq!(read, tensors + gaps);
        }
    }
}

#[test]
fn a_packed_round_has_all_of_it_as_records_of_one_size() {
    let mesh = Mesh::new(3, vec![0, 1, 2], vec![3], vec![MeshSplit::Shard { axis: 1 }]).expect("a mesh");
    let member = |shape, at, sharing| PlannedTensor::new(shape, (1, 4), Some((0, at)), sharing).expect("a tensor");
    let members = vec![member(vec![300, 300], 0, Sharing::Everyone), member(vec![40, 50], 360_000, Sharing::Mesh(0))];
    let sizes = RankSizes { unit: Some(300_000), round: None };
    let plan = ExchangePlan::new(members, vec![mesh], Vec::new(), vec![0; 3], sizes).expect("a plan");
    let mut actions = [0; 6];
    for (number, rank) in (0..plan.rounds()).flat_map(|number| (0..3).map(move |rank| (number, rank))) {
        let round = plan.round(number, rank).expect("a round");
        let packed = round.packed();
        let number_at = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let records: Vec<Vec<u64>> = packed.chunks(80).map(|one| one.chunks(8).map(number_at).collect()).collect();
        let reads = round.reads.iter().map(|(unit, len, _)| vec![0, 0, u64::from(*unit), 0, 0, *len, 0, *len, 1, *len]);
        let transfers = round.transfers.iter().map(|&Transfer { action, rank, unit, tensor, rows: one }| {
            let first = [action as u64, rank.into(), unit.into(), tensor.into()];
            [&first[..], &[one.from, one.from_stride, one.to, one.to_stride, one.rows, one.len]].concat()
        });
        assert_eq!(records, reads.chain(transfers).collect::<Vec<_>>());
        for record in &records {
            actions[record[0] as usize] += 1;
        }
    }
    assert!(actions.iter().all(|count| *count > 0), "{actions:?}");
}

fn model(world: u32, layers: u64, sharing: impl Fn(usize) -> Sharing) -> Vec<PlannedTensor> {
    let mut at = 0;
    let mut members = Vec::new();
    for layer in 0..layers {
        for (number, shape) in [vec![4096, 4096], vec![4096], vec![14336, 4096], vec![4096, 14336], vec![1024, 4096]]
            .into_iter()
            .enumerate()
        {
            let number = layer as usize * 5 + number;
            let member = PlannedTensor::new(shape, (1, 2), Some((0, at)), sharing(number)).expect("a tensor");
            at += member.bytes;
            members.push(member);
        }
    }
    assert!(world > 0);
    members
}

#[test]
fn ranks_and_nodes_have_about_the_same_to_read() {
    for world in [8, 64, 256] {
        let members = model(world, 80, |_| Sharing::Everyone);
        let nodes = (0..world).map(|rank| rank / 8).collect();
        let costs =
            ExchangePlan::new(members, Vec::new(), Vec::new(), nodes, RankSizes::default()).expect("a plan").costs();
        let (most, all) = (costs.read.iter().max().copied().unwrap_or(0), costs.read.iter().sum::<u64>());
        let imbalance = most as f64 * f64::from(world) / all as f64;
        assert!(imbalance <= 1.1, "{world} ranks: {imbalance}");
    }
}

#[test]
fn ranks_have_about_the_same_to_read_where_few_need_a_unit() {
    let world = 256;
    let mesh = Mesh::new(world, (0..world).collect(), vec![world], vec![MeshSplit::Shard { axis: 0 }]).expect("a mesh");
    let (members, nodes) = (model(world, 80, |_| Sharing::Mesh(0)), (0..world).map(|rank| rank / 8).collect());
    let costs =
        ExchangePlan::new(members, vec![mesh], Vec::new(), nodes, RankSizes::default()).expect("a plan").costs();
    let (most, all) = (costs.read.iter().max().copied().unwrap_or(0), costs.read.iter().sum::<u64>());
    let imbalance = most as f64 * f64::from(world) / all as f64;
    assert!(imbalance <= 1.08, "{imbalance}: each reads ten units");
}

#[test]
fn the_ranks_of_one_machine_read_no_rows_that_only_others_need() {
    let ranks = (0..64).map(|rank| if rank / 8 == 3 { rank % 8 } else { ABSENT }).collect();
    let mesh = Mesh::new(8, ranks, vec![64], vec![MeshSplit::Shard { axis: 0 }]).expect("a mesh");
    let members = model(8, 80, |_| Sharing::Mesh(0));
    let all: u64 = members.iter().map(|member| member.bytes).sum();
    let costs =
        ExchangePlan::new(members, vec![mesh], Vec::new(), vec![0; 8], RankSizes::default()).expect("a plan").costs();
    assert_eq!(costs.read.iter().sum::<u64>(), all / 8);

    let parts = (0..64).map(|part| Some(vec![(0, vec![part * 64..part * 64 + 64])])).collect();
    let member = PlannedTensor::new(vec![4096, 4096], (1, 2), Some((0, 64)), Sharing::Parts(parts)).expect("a tensor");
    let plan = ExchangePlan::new(vec![member], Vec::new(), (16..24).collect(), vec![0; 8], RankSizes::default());
    assert_eq!(plan.expect("a plan").costs().read.iter().sum::<u64>(), 8 * 64 * 4096 * 2);
}

#[test]
fn large_chunks_of_the_first_axis_are_read_by_those_that_have_them() {
    let mesh = Mesh::new(4, vec![0, 1, 2, 3], vec![4], vec![MeshSplit::Shard { axis: 0 }]).expect("a mesh");
    let members = model(4, 4, |number| if number % 5 == 1 { Sharing::Everyone } else { Sharing::Mesh(0) });
    let all: u64 = members.iter().map(|member| member.bytes).sum();
    let costs =
        ExchangePlan::new(members, vec![mesh], Vec::new(), vec![0; 4], RankSizes::default()).expect("a plan").costs();
    assert!(costs.exchanged < all / 20, "small tensors only: {} of {all}", costs.exchanged);
    assert_eq!(costs.read.iter().sum::<u64>(), all);
}

#[test]
fn another_mesh_tensor_or_size_has_another_hash_and_the_same_the_same() {
    let plan = |split, shape, unit| {
        let mesh = Mesh::new(2, vec![0, 1], vec![2], vec![split]).expect("a mesh");
        let member = PlannedTensor::new(shape, (1, 4), Some((0, 64)), Sharing::Mesh(0)).expect("a tensor");
        let sizes = RankSizes { unit, round: None };
        ExchangePlan::new(vec![member], vec![mesh], Vec::new(), vec![0, 0], sizes).expect("a plan").hash()
    };
    let first = plan(MeshSplit::Shard { axis: 0 }, vec![4, 4], None);
    assert_eq!(first, plan(MeshSplit::Shard { axis: 0 }, vec![4, 4], None));
    assert_ne!(first, plan(MeshSplit::Shard { axis: 1 }, vec![4, 4], None));
    assert_ne!(first, plan(MeshSplit::Shard { axis: 0 }, vec![4, 5], None));
    assert_ne!(first, plan(MeshSplit::Shard { axis: 0 }, vec![4, 4], Some(1)));
}

#[test]
fn plans_that_differ_in_who_has_what_differ_in_their_hashes() {
    let parts = |parts: &[Option<Region>]| Sharing::Parts(parts.to_vec());
    let (one, two): (Region, Region) = (vec![(0, vec![0..1])], vec![(0, vec![1..2])]);
    let (nothing, whole): (Region, Region) = (vec![(0, vec![])], vec![(0, vec![0..2])]);
    let sharings = [
        Sharing::Everyone,
        Sharing::Mesh(0),
        parts(&[None, None]),
        parts(&[None, Some(nothing.clone())]),
        parts(&[Some(nothing.clone()), None]),
        parts(&[Some(nothing.clone()), Some(nothing)]),
        parts(&[Some(Vec::new()), None]),
        parts(&[None, Some(Vec::new())]),
        parts(&[Some(whole.clone()), None]),
        parts(&[None, Some(whole)]),
        parts(&[Some(one.clone()), Some(two.clone())]),
        parts(&[Some(two.clone()), Some(one.clone())]),
        parts(&[Some([one.clone(), two.clone()].concat()), None]),
        parts(&[Some(vec![(0, vec![0..1, 1..2])]), None]),
        parts(&[Some(vec![(1, vec![0..1])]), None]),
        parts(&[Some(one), None]),
        parts(&[Some(two), None]),
    ];
    let mesh = || Mesh::new(2, vec![0, 1], vec![2], vec![MeshSplit::Replicate]).expect("a mesh");
    let hash = |sharing: &Sharing, sizes| {
        let member = PlannedTensor::new(vec![2, 2], (1, 4), Some((0, 64)), sharing.clone()).expect("a tensor");
        let part_of = if matches!(sharing, Sharing::Parts(_)) { vec![0, 1] } else { Vec::new() };
        hash_of(&[member], &[mesh()], &part_of, &[0, 0], sizes)
    };
    let mut hashes: Vec<[u8; 32]> = sharings.iter().map(|sharing| hash(sharing, RankSizes::default())).collect();
    hashes.push(hash(&sharings[0], RankSizes { unit: Some(0), round: None }));
    hashes.push(hash(&sharings[0], RankSizes { unit: None, round: Some(0) }));
    let distinct: std::collections::BTreeSet<&[u8; 32]> = hashes.iter().collect();
    assert_eq!(distinct.len(), hashes.len());
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let plan = |member: Result<PlannedTensor>, meshes, part_of| {
        let plan = member
            .and_then(|member| ExchangePlan::new(vec![member], meshes, part_of, vec![0, 0], RankSizes::default()));
        plan.map(drop).expect_err("refused").to_string()
    };
    let member = |shape, sharing| PlannedTensor::new(shape, (1, 1), None, sharing);
    assert_eq!(plan(member(vec![2], Sharing::Mesh(0)), Vec::new(), Vec::new()), "mesh 0 does not exist");
    assert_eq!(
        plan(member(vec![2], Sharing::Parts(vec![None])), Vec::new(), vec![0, 1]),
        "each of the 2 ranks needs one of the parts 0 to 0"
    );
    let mesh = Mesh::new(2, vec![0, 1], vec![2], vec![MeshSplit::Shard { axis: 1 }]).expect("a mesh");
    assert_eq!(
        plan(member(vec![2], Sharing::Mesh(0)), vec![mesh], Vec::new()),
        "a tensor of shape [2] has no axis 1 to split"
    );
    let huge = plan(member(vec![u64::MAX, 2], Sharing::Everyone), Vec::new(), Vec::new());
    assert_eq!(huge, format!("a tensor of the shape [{}, 2] is too large", u64::MAX));
}
