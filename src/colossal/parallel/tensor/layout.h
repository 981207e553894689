// The definition of a mode of tensor parallelism: the block of each activation and each matrix that a rank holds, and
// the products over those blocks. Layers (tensor_layers.h) are written once over it: a mode adds no layer and no model
// code.
//
//   comm::Mesh mesh(world, tensor_axes(config));
//   nn::Parameters parameters(mesh.coordinates(), {});
//   TensorLayers layers(parameters, make_layout(config, mesh));
//   const models::Model model = models::make_model(shape, layers);
//
// A new mode is a type in modes.h and a file with its layout and, if the existing products do not fit, its
// nn::Product. Megatron's sequence form, for example, consists only of `outside.sequence` and of gathered_product()
// instead of the products of 1D.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/axis_switch.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/product.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::parallel {

/// The mesh axes that split a weight [out, in]. `out` and `in` are the axes of tensor::DimSplit of its two dimensions.
/// `out_shards` are the axes that split each part of `out` into shards, which are gathered for use.
struct WeightSplit {
  std::vector<std::string> out, out_shards, in;
  bool operator==(const WeightSplit&) const = default;
};

/// One direction through a linear layer: the split of its weight, and the product over those blocks.
struct Direction {
  WeightSplit weight;
  std::shared_ptr<const nn::Product> product;
};

/// The layout of a mode. All names are axes of `mesh`. An empty layout (no axes, nn::serial_product()) is the layout
/// of one rank.
///
/// Tokens:    a product may take the tokens of several ranks and return the tokens of others; it gathers them rank by
///            rank. A batch then keeps its order. A sequence does not if `outside` splits it and `inside` does not, or
///            splits it over fewer axes: see SequenceOrder (activations.h).
/// Gradients: a rank computes the whole gradient of its block of a weight, unless `weight_copies` names
///            axes. For vectors and tables (Table) it computes its tokens' share, which the gradient reducer sums over
///            the axes that split tokens.
struct Layout {
  comm::Mesh* mesh = nullptr;
  /// split at the borders of blocks, which applies to norms, residuals and dropout
  Split outside;
  /// split between an expand and its contract: attention, the hidden features of an mlp, logits. Its sequence axes are
  /// the outermost sequence axes of `outside` (none to all of them), so a rank holds inside what neighbours hold
  /// outside
  Split inside;
  /// directions from outside to inside, and back
  Direction expand, contract;
  /// axes along which ranks hold the same blocks of weights and other tokens; weight gradients are summed over them
  std::vector<std::string> weight_copies;
  /// split of the embedding table [V, H]. The axes of `out` split tokens too, all of them or none
  WeightSplit embedding;
  /// axes along which vectors and tables are stored in shards, gathered for use; these axes split tokens
  std::vector<std::string> vector_shards;
  /// axes along which ranks hold the same hidden states outside
  std::vector<std::string> copies{};
  /// true = the ranks of a tensor group split each expert of a mixture; false = they hold different experts
  bool splits_experts = false;
  /// true = the ranks along the mesh axis "expert" hold the same tokens, as in generation; false = other rows
  bool has_expert_copies = false;
  /// ranks of a node, to which a token of a mixture is sent once (ExpertConfig::node); 0 = straight to each rank
  int64_t expert_node = 0;
  /// true = a forward pass sends tokens to experts in fp8 (ExpertConfig::compress)
  bool compresses_tokens = false;
  /// returns the split of the `tokens` of each row of a batch over outside.sequence. It is planned for each batch from
  /// its step and for the layers that `attention` has made, and equal on every rank; null = equal runs. Products that
  /// gather tokens need equally many from each rank. A pipeline needs equally many of a rank in each micro-batch of a
  /// step
  std::function<nn::SequenceCut(int64_t tokens, const nn::ForwardContext& step)> cut{};
  /// makes attention (nn::Layers::make_attention) if ranks have parts of the sequence inside, too, or parts of a
  /// cache; null = ranks have whole sequences
  std::function<std::unique_ptr<nn::Attention>(int64_t layer, const nn::AttentionShape&, const nn::AttentionOptions&)>
      attention{};
  /// moves the split of a hidden state from one axis to another (nn::Layers::axis_switch); null = it never moves
  std::shared_ptr<const nn::AxisSwitch> axis_switch{};
  /// the ranks that cut a folding model's representations (nn::Layers::axial_ranks); null = no rank cuts them
  std::shared_ptr<const nn::AxialRanks> axial_ranks{};

  /// Returns `step`, of a batch with `tokens` tokens per row, with the cut that layers of this layout need. A cut that
  /// the step already has stays. distributed::DistributedModel calls this for each micro-batch.
  /// Errors ("parallel"): a cut that is not for the ranks that split the sequence, or that does not assign each run
  ///                      once or all tokens. Unequal shares for ranks whose tokens are gathered.
  nn::ForwardContext with_cut(nn::ForwardContext step, int64_t tokens) const;
  /// Returns the tokens of a row that layers of this rank take from a batch, for a step with its cut.
  nn::Share tokens_read(const nn::ForwardContext& step) const;
};

/// Returns the layout of `config` on a mesh that has those axes. It keeps references to groups of `mesh`. Errors: as
/// tensor_axes(). Collective if groups are made; nothing is sent.
Layout make_layout(const TensorConfig& config, comm::Mesh& mesh);

}  // namespace colossal::parallel
