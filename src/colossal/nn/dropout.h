// Dropout of hidden states.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"

namespace colossal::nn {

/// Part of a ForwardContext: the hidden states have one token per row, the class token, whichever rank holds it.
/// Dropout then numbers rows only.
struct ClassTokens {};

/// Where the tokens of a rank's hidden states are in the whole batch.
struct TokenPlaces {
  /// Finds the places of `rows` rows with `in_row` tokens each, which are a rank's `tokens` of the batch of `step`.
  /// Errors ("parallel"): as Share::ranges().
  TokenPlaces(const ForwardContext& step, Tokens tokens, int64_t rows, int64_t in_row);
  TokenPlaces() = default;

  int64_t first_row = 0;      ///< index of the first row, among the rows of the global batch
  int64_t sequence = 0;       ///< number of tokens of a whole row
  std::vector<Range> runs{};  ///< the tokens of a row that this rank has, in its order
};

/// Returns x [B, S_local, F_local] with the elements that a mask drops set to 0 and the others divided by 1 - p. The
/// mask depends only on the seed and the logical index of the element: its row, its token, and its feature of
/// `all_features`, of which this rank has `features`. Gradient: the same mask, drawn again.
at::Tensor dropped(const at::Tensor& x, double p, uint64_t seed, const TokenPlaces& places, const Range& features,
                   int64_t all_features);

/// Dropout whose masks are the same under every layout.
class Dropout {
 public:
  virtual ~Dropout() = default;
  /// Returns x [B, S, H] * mask / (1 - p) while training, otherwise x. The mask depends only on the step's seed, the
  /// layer's name and the logical index of the element.
  virtual at::Tensor forward(const at::Tensor& x, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
