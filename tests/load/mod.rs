//! Reading tensors: plans, regions, recipes, statistics.

mod dequantization;
mod load_cuts;
mod load_verified;
mod modelled_disk;
mod passes;
mod plans;
mod recipes;
mod rows;
mod slices;
mod statistics;
mod threads;
