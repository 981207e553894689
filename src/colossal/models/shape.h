// The sizes of a transformer: sizes that all families have, and keys of its own family.
#pragma once
#include <cstdint>
#include <memory>

#include "colossal/models/sizes.h"
#include "colossal/nn/attention_shape.h"

namespace colossal::models {

struct Architecture;
struct Task;

/// The sizes of one model. Made by Registry::resolve() from a config, by Registry::shape_of() from a Hugging Face
/// folder, or by hand:
///
///   ModelShape{.architecture = built_in().at("gpt2"), .vocabulary = 43, .hidden = 24, .layers = 2, ...}
struct ModelShape {
  std::shared_ptr<const Architecture> architecture{};  ///< the family; must not be null in a shape that is used
  int64_t vocabulary = 0;                              ///< number of token ids; 0 = the model reads no text
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0;
  int64_t positions = 0;  ///< longest sequence, including tokens that the model adds (a class token)
  double norm_epsilon = 1e-5;
  double dropout = 0;  ///< probability of dropout after the embedding and on each residual branch
  bool tied = true;    ///< true = the head shares the embedding's weight
  OwnSizes own{};      ///< keys of this architecture only; empty = its defaults
  /// Length above which the result for a token also depends on the length of its text (rotary positions of types
  /// dynamic and longrope); 0 = it never does. Set by Architecture::settle
  int64_t even_positions = 0;
  /// True = all lengths above even_positions give a token the same result (longrope). Set by Architecture::settle
  bool even_beyond = false;
  /// Number of tokens to which every layer attends at most, including the token itself; 0 = some layers attend to all.
  /// Set by Architecture::settle
  int64_t window = 0;
  /// Number of experts of a mixture layer; 0 = the model is dense. Set by Architecture::settle
  int64_t experts = 0;

  /// Number of layers after the last block that read the embedding again (models/multi_token.h); 0 = none. Set by
  /// Architecture::settle
  int64_t multi_token_layers = 0;

  /// Elements of a token and layer in a cache of latents (nn/latent_heads.h); 0 = keys and values of each kv head are
  /// cached. Set by Architecture::settle
  int64_t cached_latent = 0;

  /// Returns true if both have the same architecture (by name) and the same sizes.
  bool operator==(const ModelShape& other) const;

  nn::AttentionShape attention() const { return {hidden, heads, kv_heads, head_dim}; }
  /// Returns the inputs of the model, the text it can write and its default objective.
  Task task() const;
  /// Errors ("model"): no architecture; a size that is not positive (nor 0 and in Architecture::unused); own sizes
  ///                   outside the ranges of their keys; heads that are not a multiple of kv_heads; sizes that
  ///                   Architecture::settle refuses.
  void validate() const;
};

}  // namespace colossal::models
