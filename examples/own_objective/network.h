// A small network over numbers: residual blocks of two matrices each. It has no attention and no vocabulary.
#pragma once
#include <colossal.h>

/// Its keys of [model].
struct NetworkSizes {
  int64_t inputs = 4, outputs = 1;
  void fields(colossal::Fields& f);
  bool operator==(const NetworkSizes&) const = default;
};

/// Reads the field `inputs` [B, 1, inputs]. Its final norm returns the predictions [B, 1, outputs], whole on every
/// rank; it has no head.
colossal::models::Architecture network();
