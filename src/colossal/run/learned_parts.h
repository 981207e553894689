// The parts of a layout that belong to what a run learns. All other parts change the losses by rounding alone.
//
//   const run::LearnedParts learned(config.parallel, shape, *objective);
//   const auto kept = learned.of(config.parallel, config.micro_batches());
//   const std::string change = run::learned_change(kept, learned.of(other.parallel, other.micro_batches()));
//   if (!change.empty()) ...;                              // `other` trains another model
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/distributed/config.h"
#include "colossal/models/shape.h"
#include "colossal/run/objective.h"

namespace colossal::run {

/// A part of a layout that belongs to what a run learns.
struct LearnedPart {
  std::string what;   ///< "micro-batches"
  std::string value;  ///< its value in a layout: "4"
  std::string why;    ///< the keys that make it count, with a verb: "model.experts.balance_loss counts ..."
};

/// Tells which parts of a layout belong to what a run learns. Parts:
///
///   micro-batches   experts.capacity that drops tokens and experts.balance_loss count the tokens of a micro-batch, and
///                   a loss may compare its samples (Objective::compares_samples());
///   routing ranks   balance_over = "rank" balances the tokens of each rank;
///   replicas        parallel.compress rounds what replicas send, and what ZeRO gathers;
///   expert ranks    parallel.expert.compress rounds the tokens that leave a rank.
///
/// The z-loss is no reason: it is a mean over tokens, of which every micro-batch has equally many.
class LearnedParts {
 public:
  LearnedParts() = default;
  LearnedParts(const distributed::ParallelConfig& given, const models::ModelShape& shape, const Objective& objective);

  /// Returns false if every layout learns the same up to rounding.
  bool any() const { return !micro_batches_.empty() || routes_ || compresses_ || compresses_tokens_; }
  /// Returns the parts with their values in a layout, always in the same order.
  std::vector<LearnedPart> of(const distributed::ParallelConfig& parallel, int64_t micro_batches) const;

 private:
  std::string micro_batches_;  // why micro-batches count; empty = they do not
  bool routes_ = false, compresses_ = false, compresses_tokens_ = false;
  bool has_experts_ = false;
};

/// Returns how a layout changes what is learned: "micro-batches must stay 1, because ...: got 2". Returns an empty text
/// if all parts are equal.
std::string learned_change(const std::vector<LearnedPart>& kept, const std::vector<LearnedPart>& other);
/// Returns what a search keeps and why, a line for each part: "micro-batches stay 1, because ...".
std::vector<std::string> describe(const std::vector<LearnedPart>& parts);

}  // namespace colossal::run
