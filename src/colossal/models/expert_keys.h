// Mixtures of experts (nn/experts.h) as the table `experts` among the own keys of a family. A family has it as a part
// of its keys:
//
//   void MySizes::fields(Fields& f) { expert_table(f, experts); }                    // [model] experts = {count = 8}
//   Model make(const ModelShape& s, nn::Layers& layers) {
//     return make_decoder(s, {.block = block, .blocks = with_experts(every, own.experts, s)}, layers);
//   }
//   void settle(ModelShape& s) { settle_experts(s.own.as<MySizes>().experts, s); }
//
// and expert_training_keys() in HuggingFace::own_training.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/experts.h"

namespace colossal::models {

/// The keys of the table. nn::ExpertOptions defines those of the router and of the losses.
struct ExpertKeys {
  int64_t count = 0, used = 2;    ///< experts of a layer (0 = the model is dense), and experts of a token
  int64_t ffn = 0;                ///< features inside one expert; 0 = ModelShape::ffn
  int64_t shared = 0;             ///< experts of every token, which are one feed-forward layer of shared * ffn features
  int64_t dense_first = 0;        ///< number of dense blocks before the first mixture
  int64_t every = 1;              ///< blocks with another index than every - 1, 2 every - 1, ... are dense
  std::vector<int64_t> dense{};   ///< indices of further dense blocks
  std::string score = "softmax";  ///< or sigmoid
  bool normalize = true;
  double scale = 1;
  int64_t groups = 1, groups_used = 1;
  double capacity = 0;
  double balance_loss = 0.01;
  std::string balance_over = "batch";  ///< or rank
  double z_loss = 0;
  bool bias = false;
  double bias_rate = 0;

  /// Visits the keys. If a reader changes `bias`, balance_loss gets its default for such models: 0 with biases, which
  /// balance the experts instead, else 0.01.
  void fields(Fields& f);
  bool operator==(const ExpertKeys&) const = default;

  /// Returns true if the block of that index has experts, false if it is dense.
  bool is_mixture(int64_t layer) const;
  /// Returns the options of the layer, without the activation, gates, biases and deviations, which the block sets.
  nn::ExpertOptions options(const ModelShape& shape) const;
  /// Returns the number of features of the shared expert; 0 = none.
  int64_t shared_ffn(const ModelShape& shape) const;
};

/// Visits the keys as the table `experts`.
void expert_table(Fields& f, ExpertKeys& keys);
/// Returns the table `experts` of the own keys of a shape; the defaults, a dense model, if they have no such table.
ExpertKeys expert_keys_of(const ModelShape& shape);
/// Returns `shape` with experts.capacity = `capacity`. Errors ("config"): own keys without a table `experts`.
ModelShape with_expert_capacity(ModelShape shape, double capacity);
/// Returns the keys of the table that concern training alone, by their dotted names, such as "experts.capacity".
std::vector<std::string> expert_training_keys();

/// Returns `blocks`, with experts in the blocks that are mixtures.
BlockVariants with_experts(const BlockVariants& blocks, const ExpertKeys& keys, const ModelShape& shape);
/// Returns `block` for every layer, with experts in the blocks that are mixtures.
BlockVariants with_experts(const BlockVariant& block, const ExpertKeys& keys, const ModelShape& shape);

/// Checks the keys for a family's `settle`, and sets MixtureSizes.
/// Errors ("experts"): the errors of nn::check_options(); an index in `dense` that no block has; no block left with
///                     experts; `bias_rate` without `bias`; more than kMaxSize features of the shared expert; other
///                     keys with a `count` of 0.
void settle_experts(const ExpertKeys& keys, ModelShape& shape);

}  // namespace colossal::models
