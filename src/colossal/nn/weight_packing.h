// How the weights of linear layers are packed (nn/packed_weights.h).
#pragma once
#include <cstdint>

namespace colossal::nn {

/// How weights are packed.
struct WeightPacking {
  /// Bits of quantized values, 8 or 4, each group rounded to nearest (ops::round_to_codes); 0 = the model's dtype
  int64_t bits = 0;
  int64_t group = 128;    ///< number of inputs that share a scale
  bool floating = false;  ///< for 8 bits: floating point (e4m3) with one scale per output, for any group
  /// True = the weight keeps its value in addition to its packed form. Passes that need gradients then use the product
  /// inside, and repack() works. False = only the packed form remains
  bool keeps_values = false;
  /// True = passes that need gradients multiply with the packed form, too, once repack() has made it; backward uses the
  /// values. A token then has the same result whether it is trained or generated (nn/canonical.h). Needs keeps_values
  bool in_training = false;
};

}  // namespace colossal::nn
