// A small network over numbers: residual blocks of two matrices each. It has no attention and no vocabulary.
#pragma once
#include <colossal.h>

/// The keys that this architecture adds to [model].
struct NetworkSizes {
  int64_t inputs = 4, outputs = 1;
  void fields(colossal::Fields& f);
  bool operator==(const NetworkSizes&) const = default;
};

/// Returns the architecture. It reads the field `inputs` [B, 1, inputs]. It has no head; its final norm returns the
/// predictions [B, 1, outputs], complete on every rank.
colossal::models::Architecture network();
