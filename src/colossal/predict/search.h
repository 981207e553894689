// Searches the fastest layout of a number of ranks that fits.
//
//   const predict::SearchResult found = predict::search({config, shape}, cluster, {.ranks = 64});
//   std::fputs(found.best.front().table.c_str(), stdout);                 // TOML to paste
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/prediction.h"
#include "colossal/run/config.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

struct SearchOptions {
  int64_t ranks = 0;              ///< ranks of the layouts; 0 = as many as the config asks for
  std::vector<std::string> keep;  ///< keys that keep the value of the config: "parallel.tensor"
  int64_t results = 10;           ///< most layouts in SearchResult::best
  double seconds = 60;            ///< time after which no further layout is recorded
  /// Most layouts that are recorded; 0 = as many as kBlocksPerSecond allows in `seconds`. This number is the same on
  /// all machines, so `seconds` decides only on a slow one.
  int64_t records = 0;
  /// Called after each simulated layout: how many there are, and the seconds of the best that fits (0 = none yet)
  std::function<void(int64_t simulated, double best_seconds)> progress{};
};

/// Blocks x micro-batches that a slow core records in a second, for the number of layouts that a search records.
inline constexpr double kBlocksPerSecond = 800;

/// A layout that fits.
struct FoundLayout {
  run::Config config;
  plan::Prediction prediction;
  std::string table;  ///< TOML of the keys that the search chose
  std::string why;    ///< a sentence that compares it with plain data parallelism
};

struct SearchResult {
  /// The fastest first. If no layout of a mixture fits at every load of its experts, these are the layouts that fit up
  /// to the largest load (plan::RankLoads), and their predictions say that they do not fit
  std::vector<FoundLayout> best;
  std::vector<std::string> kept{};  ///< parts of the layout that belong to what the run learns, each with the reason
  int64_t tried = 0;                ///< layouts that were priced
  int64_t recorded = 0;             ///< layouts whose step was recorded and simulated
  int64_t shallow = 0;              ///< layouts that were recorded with few blocks (predict/shallow_step.h)
};

/// Tries data, tensor (all modes, with and without tensor.sequence), sequence (all modes), expert, pipeline and
/// schedule, ZeRO and its sharers, recomputation and micro-batches. Global batch, precision, optimizer, sequence
/// length, order of data and the budgets of [memory] stay as given, and so do the parts of the layout that belong to
/// what the run learns (run::LearnedParts). So every layout learns the same up to rounding.
///
/// All legal layouts are priced by formulas (predict/layout_price.h). The most promising ones are recorded, one rank of
/// each pipeline stage, and simulated: those of deep models first with few blocks, and in full if they remain among the
/// best. Each result corrects the formulas for the layouts with the same axes and the memory of all layouts. Stages of
/// a pipeline are cut again by predicted seconds and memory (plan/stage_cut.h), and the table names the cut. Of layouts
/// that differ in their schedule alone and have equal steps, only the one with the simplest schedule is listed. The
/// result depends on the arguments alone, unless `seconds` ends the search.
/// Errors ("plan"): nothing fits, with what the smallest layout needs. The message says "no layout fits" if all were
/// simulated or a bound on the memory of each proves it, else "none of N tried fits". Nothing is legal, with the reason
/// for each axis.
SearchResult search(const train::ConfiguredRun& run, const plan::Cluster& cluster, const SearchOptions& options);

/// Returns the changes that would make `run` fit on `cluster`: recomputation, ZeRO, more micro-batches, tiers, a
/// capacity of the experts, and pairs of which no part is enough alone. A change of what the run learns
/// (run::LearnedParts) says so in plan::Remedy::training. The fastest is first; if the profile has no speed of copies,
/// those with tiers are last. Empty if nothing of this makes it fit.
/// `progress` is called with the number of recorded layouts.
/// Cost: up to 40 recorded layouts, and at most 20 s.
std::vector<plan::Remedy> remedies(const train::ConfiguredRun& run, const plan::Cluster& cluster,
                                   const std::function<void(int64_t recorded)>& progress = {});

}  // namespace colossal::predict
