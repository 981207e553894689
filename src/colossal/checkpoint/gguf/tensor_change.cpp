#include "colossal/checkpoint/gguf/tensor_change.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/gguf/latent.h"

namespace colossal::checkpoint {
namespace {

using Change = GgufChange;

/// Sizes of a tensor that has q, k and v of all heads. In a file its rows are all q, all k, all v. In a folder they
/// are [groups, queries + 2, features]: for each group the q heads, then k, then v.
struct Grouped {
  int64_t groups, queries, features;
  Grouped(const at::Tensor& tensor, const GgufHeads& heads) : groups(heads.kv_heads) {
    const int64_t rows = tensor.size(0);
    const bool fits = groups > 0 && heads.heads > 0 && heads.heads % groups == 0;
    queries = fits ? heads.heads / groups : 0;
    require(fits && rows % (groups * (queries + 2)) == 0, "gguf", "a tensor of ", heads.heads, " heads of q and ",
            heads.kv_heads, " of k and v has ", rows, " rows, which do not divide evenly among them");
    features = rows / (groups * (queries + 2));
  }
};

std::vector<int64_t> with_rest(std::vector<int64_t> front, const at::Tensor& tensor) {
  front.insert(front.end(), tensor.sizes().begin() + 1, tensor.sizes().end());
  return front;
}

/// Reorders the rows of each head: from pairs [heads, half, 2] to halves [heads, 2, half] if `to_halves`, else back.
at::Tensor turn_pairs(const at::Tensor& tensor, int64_t heads, bool to_halves) {
  require(heads > 0 && tensor.size(0) % (2 * heads) == 0, "gguf", "rows of a tensor of ", heads,
          " heads must be pairs of features: got ", tensor.size(0));
  const int64_t half = tensor.size(0) / heads / 2;
  const std::vector<int64_t> shape =
      to_halves ? std::vector<int64_t>{heads, half, 2} : std::vector<int64_t>{heads, 2, half};
  return tensor.reshape(with_rest(shape, tensor)).transpose(1, 2).reshape(tensor.sizes());
}

}  // namespace

at::Tensor to_folder(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads) {
  switch (change) {
    case Change::None:
    case Change::LatentKeys:
    case Change::LatentValues:
      break;
    case Change::Transposed:
      return tensor.dim() == 2 ? tensor.t() : tensor;
    case Change::QueryPairs:
      return turn_pairs(tensor, heads.heads, true);
    case Change::KeyPairs:
      return turn_pairs(tensor, heads.kv_heads, true);
    case Change::OneMore:
      return tensor - 1;
    case Change::Groups: {
      const Grouped is(tensor, heads);
      const std::vector<at::Tensor> parts = tensor.split_with_sizes(
          {is.groups * is.queries * is.features, is.groups * is.features, is.groups * is.features});
      std::vector<at::Tensor> grouped;
      for (const at::Tensor& part : parts)
        grouped.push_back(part.reshape(with_rest({is.groups, -1, is.features}, part)));
      return at::cat(grouped, 1).reshape(tensor.sizes());
    }
  }
  return tensor;
}

at::Tensor to_gguf(const at::Tensor& tensor, GgufChange change, const GgufHeads& heads) {
  switch (change) {
    case Change::None:
      break;
    case Change::Transposed:
      return tensor.dim() == 2 ? tensor.t() : tensor;
    case Change::QueryPairs:
      return turn_pairs(tensor, heads.heads, false);
    case Change::KeyPairs:
      return turn_pairs(tensor, heads.kv_heads, false);
    case Change::OneMore:
      return tensor + 1;
    case Change::LatentKeys:
      return latent_keys(tensor, heads);
    case Change::LatentValues:
      return latent_values(tensor, heads);
    case Change::Groups: {
      const Grouped is(tensor, heads);
      const at::Tensor groups = tensor.reshape(with_rest({is.groups, is.queries + 2, is.features}, tensor));
      std::vector<at::Tensor> parts;
      for (const at::Tensor& part : groups.split_with_sizes({is.queries, 1, 1}, 1))
        parts.push_back(part.reshape(with_rest({-1}, tensor)));
      return at::cat(parts, 0);
    }
  }
  return tensor;
}

}  // namespace colossal::checkpoint
