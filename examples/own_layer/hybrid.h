// A decoder whose blocks have two layers that the library lacks: a causal depthwise convolution over the tokens of a
// document, as in Mamba (arXiv:2312.00752, section 3.4), and a group norm (arXiv:1803.08494).
#pragma once
#include <colossal.h>

/// The keys that this architecture adds to [model].
struct HybridSizes {
  int64_t groups = 3;
  int64_t width = 4;
  void fields(colossal::Fields& f);
  bool operator==(const HybridSizes&) const = default;
};

colossal::models::Architecture hybrid_architecture();
