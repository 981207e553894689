// The sizes of a transformer: sizes that all families have, and keys of its own family.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "colossal/base/typed_parts.h"
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
  /// Sizes that only some kinds of models have (models/shape_parts.h). All but OutputSizes, ValueSizes,
  /// OwnTextEncoder, OwnControl and OwnImagePrompt follow from the others
  TypedParts parts{};

  /// Returns a part, or its default if the model has none of that type.
  template <class Part>
  Part part() const {
    const Part* found = parts.find<Part>();
    return found ? *found : Part{};
  }
  template <class Part>
  void set(Part part) {
    parts.set(std::move(part));
  }

  /// Returns true if both have the same architecture (by name) and the same sizes.
  bool operator==(const ModelShape& other) const;

  nn::AttentionShape attention() const { return {hidden, heads, kv_heads, head_dim}; }
  /// Returns the number of Model::blocks: the layers, and those of FurtherBlocks.
  int64_t blocks() const;
  /// Returns OutputSizes::outputs.
  int64_t outputs() const;
  /// Returns true if the model has a head of values in addition to its own (with_values()).
  bool has_values() const;
  /// Returns the inputs of the model, the text it can write and its default objective.
  Task task() const;
  /// Errors ("model"): no architecture; a size that is not positive (nor 0 and in Architecture::unused); outputs or
  ///                   values of a model that does not continue text; outputs beside a tied head; own sizes
  ///                   outside the ranges of their keys; heads that are not a multiple of kv_heads; sizes that
  ///                   Architecture::settle refuses.
  void validate() const;
};

/// Returns the shape of the same model with a head of `outputs` outputs per token in place of the vocabulary's, and
/// without multi-token layers, which need that head; 0 = the shape as it is.
/// Errors ("model"): a model that does not continue text.
ModelShape with_outputs(ModelShape shape, int64_t outputs);

/// Returns the shape of the same model with a second head of one value per token, whose weights start at 0
/// (Model::values), or without one. Folders of other programs do not contain that head.
/// Errors ("model"): a model that does not continue text.
ModelShape with_values(ModelShape shape, bool has_values = true);

}  // namespace colossal::models
