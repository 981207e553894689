// A language model with two hidden states, like models that fold proteins. `hidden` [B, S, H] has a vector for each
// token. `pair` [B, N, N, P] has a vector for each pair of slots, which are N equal runs of the row's tokens. Each
// block reads and changes both. A token sees only slots before its own one, so the model can learn to predict the next
// token. The block in the middle also predicts the distance of each pair. The error is a loss term, and a row
// `blocks.2.distance` of the metrics.
#pragma once
#include <colossal.h>

/// The keys that this architecture adds to [model].
struct StreamsSizes {
  int64_t slots = 8;  ///< N, a divisor of the number of tokens in a row
  int64_t pair = 16;  ///< P, the width of the state of pairs
  void fields(colossal::Fields& f);
  bool operator==(const StreamsSizes&) const = default;
};

colossal::models::Architecture streams_architecture();
