// Searches the fastest layout of a number of ranks that fits.
//
//   const predict::SearchResult found = predict::search(config, shape, cluster, {.ranks = 64});
//   found.best.front().config;                  // the config with the fastest layout
//   found.best.front().found.table;             // TOML to paste
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/prediction.h"
#include "colossal/run/config.h"

namespace colossal::predict {

struct SearchOptions {
  int64_t ranks = 0;              ///< ranks of the layouts; 0 = as many as the config asks for
  std::vector<std::string> keep;  ///< keys that keep the value of the config: "parallel.tensor"
  int64_t results = 10;           ///< most layouts in SearchResult::best
  double seconds = 60;            ///< time after which no further layout is recorded
};

/// A layout that fits.
struct FoundLayout {
  run::Config config;
  plan::Prediction prediction;
  std::string table;  ///< TOML of the keys that the search chose
  std::string why;    ///< a sentence that compares it with plain data parallelism
};

struct SearchResult {
  std::vector<FoundLayout> best;  ///< the fastest first
  int64_t tried = 0;              ///< layouts that were priced
};

/// Tries data, tensor (all modes), sequence (all modes), expert, pipeline and schedule, ZeRO and its sharers,
/// recomputation, micro-batches, and tiers within the budgets of [memory]. Global batch, precision, optimizer, sequence
/// length and order of data stay as given, so every layout learns the same up to rounding.
/// Errors ("plan"): nothing fits, with what the smallest layout needs; nothing is legal, with the reason for each axis.
SearchResult search(const run::Config& config, const models::ModelShape& shape, const plan::Cluster& cluster,
                    const SearchOptions& options);

/// Returns the changes that would make `config` fit on `cluster`, the fastest first: recomputation, ZeRO, more
/// micro-batches, tiers, and pairs of them.
std::vector<plan::Remedy> remedies(const run::Config& config, const models::ModelShape& shape,
                                   const plan::Cluster& cluster);

}  // namespace colossal::predict
