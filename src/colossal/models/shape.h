// The sizes of a transformer, whatever its architecture.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/nn/attention_shape.h"

namespace colossal::models {

struct ModelConfig;

/// Rotary positions, with LLaMA-3's stretching of low frequencies when factor > 1.
struct RotaryShape {
  double theta = 10000;
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_positions = 8192;
  bool operator==(const RotaryShape&) const = default;
};

/// Of anything: no product of two sizes that a run can have overflows.
inline constexpr int64_t kLargestSize = (int64_t{1} << 40) - 1;
inline constexpr int64_t kLargestSide = 1 << 16;  ///< of an image, in pixels

/// What a model of images reads and says: square images in square patches, and the classes they belong to.
struct ImageShape {
  int64_t side = 0, channels = 0, patch = 0, classes = 0;
  int64_t patches() const { return (side / patch) * (side / patch); }
  bool operator==(const ImageShape&) const = default;
};

struct ModelShape {
  std::string architecture;  ///< a row of the registry: "gpt2", "llama", "vit"
  int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int64_t positions = 0;  ///< longest sequence; of images: the patches and the class token
  double norm_epsilon = 1e-5;
  double dropout = 0;  ///< after the embedding and on each residual branch
  bool tied = true;    ///< the head shares the embedding's weight
  RotaryShape rotary;
  ImageShape image;  ///< of models of images, which have no vocabulary
  bool operator==(const ModelShape&) const = default;

  nn::AttentionShape attention() const { return {hidden, heads, kv_heads, head_dim}; }
  /// Errors ("model"): a size that is not positive, heads that are no multiple of kv_heads, an odd head_dim for rotary
  ///                   positions, a side that does not divide by the patch.
  void validate() const;
};

/// The preset of config.name, or the shape of the Hugging Face folder config.from, with the changes that `config` asks
/// for. A preset's vocabulary is `tokenizer_vocabulary` unless that is 0.
/// Errors ("model"): an unknown preset (with the nearest name), changed sizes of a folder, sizes of images for a model
///                   of text or the other way round, whatever validate() refuses.
ModelShape resolve(const ModelConfig& config, int64_t tokenizer_vocabulary = 0);

}  // namespace colossal::models
