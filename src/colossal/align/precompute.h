// Log-probabilities of a reference, computed once before training (reference.precompute).
//
//   align::precompute(world, config, tables, program, {.resumes = false});    // on every rank, before the run's models
#pragma once
#include <cstdint>

#include "colossal/comm/world.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"
#include "colossal/run/own_tables.h"
#include "colossal/run/program.h"

namespace colossal::align {

/// Numbers of texts, over all replicas.
struct Precomputed {
  int64_t computed = 0, found = 0;  ///< computed now; in the cache already
};

/// Computes the sums of log-probabilities of all texts that a run reads, and stores them in run::reference_cache(). The
/// model exists only while this runs, and only if a text is not in the cache: under the layout of the run, or within
/// the budgets of [memory].
///
/// The batches are those of the run, to the end of the first epoch of all sources; with kto, whose mismatched texts
/// depend on the batch, all of them; and those of evaluations. Replicas share the work, and every 16 passes add a file
/// to the folder. A run that was killed computes only what it had not stored.
///
/// The reference stores its matrices and multiplies with them as the run does: in the format of adapter.base, as the
/// codes of model.from, in fp8. In a batch of the run its sums are those of the run's passes. Scales of fp8 follow the
/// batch, and with delayed scaling also the steps of a run without precompute, so there they may differ by rounding.
///
/// A run that resumes keeps the reference of its start, even if that is a run folder that has gone on. A run that
/// starts computes into RunFolder::next_reference(), so an earlier run in its folder keeps its cache until it is
/// replaced (run::place_reference). Scores of the same reference and data are taken over from it.
/// Collective among all ranks of `world`. Communication: checks of 16 bytes a batch, and that of the passes.
/// Errors, on all ranks: ("reference") a cache of another reference, data, tokenizer or template, with what differs; a
///         reference that has gone on, of which texts are missing; a reference of another shape. ("file") a full disk.
Precomputed precompute(comm::World& world, const run::Config& config, const run::OwnTables& tables,
                       const run::Program& program, const run::Preparation& how);

}  // namespace colossal::align
