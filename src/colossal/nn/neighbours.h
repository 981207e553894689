// The tokens next to those of this rank, for layers that look at a few tokens before or after each one: convolutions,
// shifts. They are found under every layout, in packed rows and in generation.
//
//   const std::shared_ptr<const nn::Neighbours> neighbours = layers.neighbours({.before = 3});
//   const nn::Halo halo = neighbours->of(x, step);                      // x [B, S, H]: one message
//   for (int64_t k = 0; k <= 3; ++k) y = y + halo.at(k - 3) * taps->value().select(1, k);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/nn/token_runs.h"

namespace colossal::nn {

class TokenMemory;  // nn/token_memory.h

/// How far a layer looks.
struct Reach {
  int64_t before = 0, after = 0;  ///< tokens before and after each token
};

/// A rank's hidden states with the tokens around them.
class Halo {
 public:
  /// Returns, for each token of the rank, the token `offset` places after it (before it, if negative): [B, S_local, F].
  /// It is 0 if that token is in another row, document or sequence.
  /// Errors ("model"): an offset beyond the reach.
  at::Tensor at(int64_t offset) const;

 private:
  friend class Neighbours;
  explicit Halo(Reach reach) : reach_(reach) {}
  /// A run of tokens with `reach` around it: [B, before + tokens + after, F]. `documents` [B, the same] numbers the
  /// documents; undefined = all are one.
  struct Run {
    at::Tensor states, documents;
  };
  Reach reach_;
  std::vector<Run> runs_;
};

/// Finds neighbours of tokens.
///
/// Communication: if ranks split the tokens of a row, one all_gather of the edges of all runs in forward, [B, n e, F],
///                and a reduce_scatter of as many elements in backward. e is the largest number of edge tokens of a
///                rank: `before` and `after` of each of its runs, as far as the run has as many.
/// Documents:     step.documents and nn::Sequences end a halo.
/// Generation:    with nn::RememberedTokens the tokens before those of a step are remembered; `after` must be 0.
/// Source:        the exchange of halos is that of domain decomposition (Dryden et al. 2019, arXiv:1903.06681).
class Neighbours {
 public:
  /// `layer`: number of this layer in a memory of tokens.
  Neighbours(std::shared_ptr<const TokenRuns> runs, Reach reach, int64_t layer);
  /// Returns the neighbours of x [B, S_local, F], hidden states between blocks.
  /// Errors ("model"): tokens after in generation; documents in generation.
  Halo of(const at::Tensor& x, const ForwardContext& step) const;

 private:
  /// A halo, and the last tokens of the rows if ranks split their tokens.
  struct Around {
    Halo halo;
    at::Tensor end{};
  };
  /// Gathers the last `tails` tokens of each run, at least `before`.
  Around around(const at::Tensor& x, const ForwardContext& step, int64_t tails) const;
  Halo after_memory(const at::Tensor& x, const ForwardContext& step, TokenMemory& memory) const;

  std::shared_ptr<const TokenRuns> runs_;
  Reach reach_;
  int64_t layer_;
};

}  // namespace colossal::nn
