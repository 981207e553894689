// A language model of two streams, as those of models that fold proteins: `hidden` [B, S, H] has a vector for each
// token, `pair` [B, N, N, P] one for each pair of slots, which are N equal runs of the row's tokens. Each block reads
// and changes both. A token sees slots before its own alone, so the model can learn to predict the next token. The
// block in the middle also guesses the distance of each pair: a loss term, a row `blocks.2.distance` of the metrics.
#pragma once
#include <colossal.h>

/// The keys that this architecture adds to [model].
struct StreamsSizes {
  int64_t slots = 8;  ///< N: they divide the tokens of a row
  int64_t pair = 16;  ///< P
  void fields(colossal::Fields& f);
  bool operator==(const StreamsSizes&) const = default;
};

colossal::models::Architecture streams_architecture();
