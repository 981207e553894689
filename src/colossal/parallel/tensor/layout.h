// What a mode of tensor parallelism is: which block of each activation and of each matrix a rank holds, and the
// products over those blocks. Layers (tensor_layers.h) are written once over it: a mode adds no layer, no model code.
//
//   comm::Mesh mesh(world, tensor_axes(config));
//   nn::Parameters parameters(mesh.place(), {});
//   TensorLayers layers(parameters, make_layout(config, mesh));
//   const models::Model model = models::make_model(shape, layers);
//
// A new mode is a type in modes.h and a file with its layout and, where the products of the others do not serve, its
// nn::Product. Megatron's sequence form is an example: `outside.sequence`, and gathered_product() in place of the
// products of 1D, and no more.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/product.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::parallel {

/// How a weight [out, in] is cut: `out` and `in` are the axes of tensor::DimSplit of its two dimensions, `out_shards`
/// those that cut each part of `out` once more in pieces, which are gathered for use.
struct WeightSplit {
  std::vector<std::string> out, out_shards, in;
  bool operator==(const WeightSplit&) const = default;
};

/// One direction through a linear layer: where its weight lies, and what multiplies those blocks.
struct Direction {
  WeightSplit weight;
  std::shared_ptr<const nn::Product> product;
};

/// All names are axes of `mesh`. An empty one (no axes, nn::serial_product()) is that of one rank.
///
/// Tokens:    a product may take the tokens of several ranks and return those of others; it gathers them rank by rank.
///            A batch stays in its order then, and a sequence does not, where `outside` splits it and `inside` does
///            not, or over fewer axes: see SequenceOrder (activations.h).
/// Gradients: of a weight a rank makes all of its block's, unless `weight_copies` names axes; of vectors and tables
///            (Table) its tokens' share, which the gradient reducer sums over the axes that split tokens.
struct Layout {
  comm::Mesh* mesh = nullptr;
  /// At the borders of blocks: what norms, residuals and dropout see.
  Split outside;
  /// Between an expand and its contract: attention, the hidden features of an mlp, logits. Its axes of the sequence are
  /// the outermost of those of `outside`, none to all of them: inside a rank has what neighbours have outside.
  Split inside;
  /// From outside to inside, and back.
  Direction expand, contract;
  /// Axes along which ranks hold the same blocks of weights and see other tokens: weight gradients are summed there.
  std::vector<std::string> weight_copies;
  /// Split of the table [V, H] of words. The axes of `out` split tokens too, all of them or none.
  WeightSplit embedding;
  /// Axes along which vectors and tables are kept in pieces, gathered for use; they split tokens.
  std::vector<std::string> vector_shards;
  /// Axes along which ranks hold the same hidden states outside.
  std::vector<std::string> copies{};
  /// How outside.sequence deals out the `tokens` of each row of a batch, planned for each batch from its step and for
  /// the layers that `attention` has made, on every rank alike; none: in equal runs. Products that gather tokens want
  /// equally many of each rank, and a pipeline wants as many of a rank in each micro-batch of a step.
  std::function<nn::SequenceCut(int64_t tokens, const nn::Step& step)> cut{};
  /// Attention (nn::Layers::make_attention) where ranks have parts of the sequence inside, too, or parts of a cache;
  /// none: they have whole sequences.
  std::function<std::unique_ptr<nn::Attention>(int64_t layer, const nn::AttentionShape&, const nn::AttentionOptions&)>
      attention{};

  /// `step`, of a batch of `tokens` a row, as layers of this layout want it: with the cut of that batch, unless it has
  /// one. distributed::DistributedModel calls it for each micro-batch.
  /// Errors ("parallel"): a cut that is not for the ranks that split the sequence, that does not deal out each run once
  ///                      or not all tokens, or unequal shares of ranks whose tokens are gathered.
  nn::Step with_cut(nn::Step step, int64_t tokens) const;
  /// The tokens of a row that layers of this rank take from a batch, of a step with its cut.
  nn::Share tokens_read(const nn::Step& step) const;
};

/// The layout of `config` on a mesh that has those axes. It keeps references to groups of `mesh`.
/// Errors: those of tensor_axes(). Collective where groups are made; nothing is sent.
Layout make_layout(const TensorConfig& config, comm::Mesh& mesh);

}  // namespace colossal::parallel
