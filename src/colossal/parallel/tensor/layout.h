// What a mode of tensor parallelism is: which block of each matrix a rank owns, and the products over those blocks.
// Layers are written once over it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/product.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::parallel {

/// How a weight [out, in] is cut (see tensor::DimSplit).
struct WeightSplit {
  std::vector<std::string> out, out_shards, in;
  bool operator==(const WeightSplit&) const = default;
};

/// One direction through a linear layer.
struct Direction {
  WeightSplit weight;
  std::shared_ptr<const nn::Product> product;
};

/// A mode. All names are mesh axes.
struct Layout {
  comm::Mesh* mesh = nullptr;
  Split outside;  ///< at the borders of blocks: what norms, residuals and dropout see
  /// Between an expand and its contract: attention, the hidden features of an mlp, logits
  Split inside;
  Direction expand, contract;  ///< outside -> inside, inside -> outside
  /// Axes over which weights are replicated while rows differ: their gradients are summed there
  std::vector<std::string> weight_copies;
  WeightSplit embedding;  ///< of the table [V, H]
  /// Row axes over which vectors and tables are kept in pieces, gathered for use
  std::vector<std::string> vector_shards;
};

/// The layout of `config` on a mesh that has those axes. It keeps references to groups of `mesh`.
Layout make_layout(const TensorConfig& config, comm::Mesh& mesh);

}  // namespace colossal::parallel
