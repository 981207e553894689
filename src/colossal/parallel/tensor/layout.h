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

/// How activations [B * S, features] are cut: the batch over `rows`, first axis outermost, the features over `columns`
/// (one axis or none).
struct Split {
  std::vector<std::string> rows, columns;
};

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
  std::string mode;
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

/// The modes. 1D: Megatron-LM, arXiv:1909.08053. 2D: SUMMA, Optimus, arXiv:2104.05343. 2.5D: Tesseract,
/// arXiv:2105.14500. 3D: arXiv:2105.14450.
Layout layout_1d(comm::Mesh& mesh);                      ///< axis "tensor"
Layout layout_2d(comm::Mesh& mesh);                      ///< axes "row" and "column", with "depth" 2.5D
Layout layout_3d(comm::Mesh& mesh, bool keep_gathered);  ///< axes "output", "input", "weight"

}  // namespace colossal::parallel
