//! One of several processes that share work without communication: each derives its own share, and that of the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

/// Task I of N: `3/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskNumber {
    /// From 1 on.
    number: usize,
    of: usize,
}

/// The maximum number of tasks.
const MAX_TASKS: usize = 1_000_000;

impl TaskNumber {
    /// Its number, from 1 on.
    pub fn number(self) -> usize {
        self.number
    }

    /// The number of tasks.
    pub fn of(self) -> usize {
        self.of
    }

    /// The items of these sizes that belong to this task. Each item belongs to exactly one task, and all tasks have nearly the same total size.
    pub fn own(self, sizes: &[u64]) -> Vec<bool> {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|item| (Reverse(sizes[*item]), *item));
        // The task with the fewest bytes, then with the fewest items, then the first.
        let mut tasks: BinaryHeap<Reverse<(u64, usize, usize)>> =
            (1..=self.of.min(sizes.len())).map(|number| Reverse((0, 0, number))).collect();
        let mut own = vec![false; sizes.len()];
        for item in order {
            let Some(Reverse((bytes, items, number))) = tasks.pop() else { break };
            own[item] = number == self.number;
            tasks.push(Reverse((bytes.saturating_add(sizes[item]), items + 1, number)));
        }
        own
    }
}

impl FromStr for TaskNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((0, _)) => Err("tasks are counted from 1: where a scheduler counts from 0, add 1".to_owned()),
            Some((number, of)) if number <= of && of <= MAX_TASKS => Ok(Self { number, of }),
            Some((_, of)) if of > MAX_TASKS => Err(format!("there are at most {MAX_TASKS} tasks")),
            Some((number, of)) => Err(format!("task {number} of {of} does not exist")),
            None => Err("a task is I/N, such as 3/16: the third of sixteen".to_owned()),
        }
    }
}

impl fmt::Display for TaskNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tasks_together_have_each_item_once_and_nearly_the_same_sizes() {
        let sizes: Vec<u64> = (0..1000).map(|i| i * 7919 % 1009).collect();
        for of in [1, 3, 16, 2000] {
            let mut times = vec![0; sizes.len()];
            let mut most = 0;
            for number in 1..=of {
                let own = TaskNumber { number, of }.own(&sizes);
                assert_eq!(own, TaskNumber { number, of }.own(&sizes));
                own.iter().zip(&mut times).for_each(|(own, times)| *times += i32::from(*own));
                most = most.max(own.iter().zip(&sizes).filter(|(own, _)| **own).map(|(_, size)| size).sum::<u64>());
            }
            assert!(times.iter().all(|times| *times == 1));
            assert!(most <= sizes.iter().sum::<u64>() / of as u64 + 1009);
        }
    }

    #[test]
    fn what_is_no_task_is_refused_with_a_sentence() {
        let message = |text: &str| text.parse::<TaskNumber>().map(|task| task.to_string());
        assert_eq!(message("3/16"), Ok("3/16".to_owned()));
        for (text, why) in
            [("0/4", "from 1"), ("5/4", "does not exist"), ("3", "I/N"), ("a/b", "I/N"), ("1/9999999", "at most")]
        {
            assert!(message(text).is_err_and(|error| error.contains(why)), "{text}");
        }
    }
}
