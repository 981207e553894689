// The legal layouts of a model on a number of ranks.
//
//   const predict::LayoutSpace space({config, shape}, {.ranks = 8, .ranks_per_node = 8});
//   space.for_each([&](const predict::Layout& layout) { seconds.push_back(price(space, layout)); });
//   const run::Config chosen = space.config_of(layout);
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/run/config.h"
#include "colossal/run/learned_parts.h"
#include "colossal/run/objective.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

/// One layout, in few bytes: a search compares up to millions. The indices are those of LayoutSpace.
struct Layout {
  int32_t tensor = 0, sequence = 0, expert = 0, pipeline = 0;  ///< index of the candidate
  int32_t data = 1;
  int32_t micro_batches = 1;  ///< of a replica: of the pipeline, or training.accumulate without one
  int32_t zero_group = 0;
  int8_t zero = 0;
  int8_t recompute = 0;  ///< index in LayoutSpace::recomputes()
  bool uses_tiers = false;
  bool operator==(const Layout&) const = default;
};

struct LayoutLimits {
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;       ///< ranks of a full node; groups that fit into one are tried
  std::vector<std::string> keep{};  ///< as SearchOptions::keep
};

/// The candidates of each axis, and all layouts that combine them.
///
/// Axes: data, tensor (every mode of parallel::tensor_modes), sequence (every mode of parallel::sequence_modes),
/// expert, pipeline (every schedule), ZeRO over all replicas or over those of a node, recomputation and micro-batches.
/// Parts that belong to what the run learns (run::LearnedParts) stay as given, and so do the budgets of [memory]: with
/// them every layout has tiers. A layout is legal by the rules of single axes and by those that involve the batch. What
/// only Config::validate() or a model finds is left to the caller.
///
/// Left out because others are never slower: schedules with several stages per rank beyond the family's default and 2
/// or 4; searched schedules of more than kMaxSearchedCells; groups of sequence.node that are not a node.
class LayoutSpace {
 public:
  /// Schedules that are searched take up to a second beyond this number of ranks x micro-batches.
  static constexpr int64_t kMaxSearchedCells = 1024;

  /// Errors ("plan"): those of run::without_layout(). Others: those of the objective.
  LayoutSpace(const train::ConfiguredRun& run, LayoutLimits limits);

  /// Calls `visit` for each layout, in a fixed order: layouts that differ only in zero, recomputation, tiers,
  /// micro-batches and schedule follow one another.
  void for_each(const std::function<void(const Layout&)>& visit) const;
  /// Returns the config of a layout. Other keys are those of the given config.
  run::Config config_of(const Layout& layout) const;
  /// Returns plain data parallelism, with the given budgets, whether or not it is legal.
  run::Config plain_data() const;

  const parallel::TensorConfig& tensor(const Layout& layout) const { return tensors_[layout.tensor]; }
  const parallel::SequenceConfig& sequence(const Layout& layout) const { return sequences_[layout.sequence]; }
  const parallel::ExpertConfig& expert(const Layout& layout) const { return experts_[layout.expert]; }
  const parallel::PipelineConfig& pipeline(const Layout& layout) const { return pipelines_[layout.pipeline]; }
  const std::vector<std::string>& recomputes() const { return recomputes_; }
  const run::Config& given() const { return given_; }
  int64_t ranks() const { return limits_.ranks; }
  int64_t tokens() const { return tokens_; }  ///< of a sample
  const models::Costs& costs() const { return costs_; }
  /// Returns the parts of the given layout that belong to what the run learns.
  const std::vector<run::LearnedPart>& learned() const { return learned_; }
  /// Returns the first reason why candidates of an axis, or of "data", were refused. Complete after for_each().
  const std::map<std::string, std::string>& refusals() const { return refusals_; }

 private:
  bool keeps(const char* key) const;
  template <class Check>
  bool is_legal(const char* axis, const Check& check) const;
  void add_tensors();
  void add_sequences();
  void add_experts();
  void add_pipelines();
  /// Checks the shapes of the further models that `axis` splits.
  void check_further(const char* axis, const std::function<void(const models::ModelShape&)>& check) const;
  void visit_batches(Layout layout, const std::function<void(const Layout&)>& visit) const;
  void visit_memory(Layout layout, const std::function<void(const Layout&)>& visit) const;
  distributed::ParallelConfig parallel_of(const Layout& layout) const;
  bool learns_the_same(const Layout& layout) const;
  int64_t samples_of_replica(const Layout& layout) const;

  run::Config given_, fresh_;  // the user's config; the same without a layout, except kept keys
  models::ModelShape shape_;
  std::vector<train::NamedModel> further_;
  LayoutLimits limits_;
  models::Costs costs_;
  int64_t tokens_ = 1;
  run::LearnedParts learned_parts_;
  std::vector<run::LearnedPart> learned_;
  std::vector<parallel::TensorConfig> tensors_;
  std::vector<parallel::SequenceConfig> sequences_;
  std::vector<parallel::ExpertConfig> experts_;
  std::vector<parallel::PipelineConfig> pipelines_;  // micro_batches is 0: see Layout
  std::vector<std::string> recomputes_;
  mutable std::map<std::string, std::string> refusals_;
};

}  // namespace colossal::predict
