// The sizes of a transformer: those that all have, and those of its family.
#pragma once
#include <cstdint>
#include <memory>

#include "colossal/models/sizes.h"
#include "colossal/nn/attention_shape.h"

namespace colossal::models {

struct Architecture;
struct Task;

/// Made by Registry::resolve() from a config, by Registry::shape_of() from a Hugging Face folder, or by hand:
///
///   ModelShape{.architecture = built_in().at("gpt2"), .vocabulary = 43, .hidden = 24, .layers = 2, ...}
struct ModelShape {
  std::shared_ptr<const Architecture> architecture{};  ///< what the sizes are of; never null in a shape that is used
  int64_t vocabulary = 0;                              ///< 0: it reads no text
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int64_t positions = 0;  ///< longest sequence, with what the model puts in beside (a class token)
  double norm_epsilon = 1e-5;
  double dropout = 0;  ///< after the embedding and on each residual branch
  bool tied = true;    ///< the head shares the embedding's weight
  OwnSizes own{};      ///< what this architecture has beside; empty: its defaults
  /// Of longer texts what a token becomes depends on the length of its text, too (rotary positions of types dynamic and
  /// longrope); 0: of none. Made by Architecture::settle
  int64_t even_positions = 0;
  int64_t window = 0;  ///< tokens that every layer sees at most, itself the last of them; 0: some see all. By settle

  /// Returns true if both have the same architecture (by name) and the same sizes.
  bool operator==(const ModelShape& other) const;

  nn::AttentionShape attention() const { return {hidden, heads, kv_heads, head_dim}; }
  /// What the model reads and what is asked of it.
  Task task() const;
  /// Errors ("model"): no architecture, a size that is not positive (nor 0 and in Architecture::unused), own sizes
  ///                   outside the ranges of their keys, heads that are no multiple of kv_heads, whatever
  ///                   Architecture::settle refuses.
  void validate() const;
};

}  // namespace colossal::models
