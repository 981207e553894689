#include "colossal/models/shape.h"

#include <tuple>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

bool ModelShape::operator==(const ModelShape& other) const {
  const auto sizes = [](const ModelShape& s) {
    return std::tie(s.vocabulary, s.hidden, s.layers, s.heads, s.kv_heads, s.head_dim, s.ffn, s.positions,
                    s.norm_epsilon, s.dropout, s.tied, s.own);
  };
  const bool same = architecture && other.architecture ? architecture->name == other.architecture->name
                                                       : architecture == other.architecture;
  const auto same_shape = [](const auto& x, const auto& y) { return x == y || (x && y && *x == *y); };
  const auto mine = part<OwnTextEncoder>(), theirs = other.part<OwnTextEncoder>();
  const bool same_text = same_shape(mine.shape, theirs.shape) && same_shape(mine.second, theirs.second) &&
                         mine.zeros_for_empty == theirs.zeros_for_empty;
  const auto control = part<OwnControl>(), other_control = other.part<OwnControl>();
  const bool same_words = part<LearnedWords>().rows == other.part<LearnedWords>().rows,
             same_control = control.channels == other_control.channels && control.scale == other_control.scale,
             same_prompt = part<OwnImagePrompt>() == other.part<OwnImagePrompt>();
  return same && same_text && same_words && same_control && same_prompt && sizes(*this) == sizes(other) &&
         outputs() == other.outputs() && has_values() == other.has_values();
}

Task ModelShape::task() const {
  require(architecture != nullptr, "model", "a shape must have an architecture; take it from a registry: at(name)");
  Task task = architecture->task ? architecture->task(*this) : Task{};
  if (outputs() > 0 && task.continues()) task.writes = Writes::Scores;
  return task;
}

int64_t ModelShape::blocks() const {
  const auto further = part<FurtherBlocks>();
  return layers + further.before + further.after;
}

int64_t ModelShape::outputs() const { return part<OutputSizes>().outputs; }

bool ModelShape::has_values() const { return part<ValueSizes>().has_values; }

ModelShape with_outputs(ModelShape shape, int64_t outputs) {
  if (outputs == 0) return shape;
  shape.set(OutputSizes{outputs});
  shape.set(ValueSizes{});
  shape.set(MultiTokenSizes{});
  shape.tied = false;
  shape.validate();
  return shape;
}

ModelShape with_values(ModelShape shape, bool has_values) {
  if (shape.has_values() == has_values) return shape;
  shape.set(ValueSizes{has_values});
  shape.validate();
  return shape;
}

void ModelShape::validate() const {
  check_own_ranges(own);
  std::vector<std::pair<std::string, int64_t>> sizes{{"hidden", hidden},     {"layers", layers},     {"heads", heads},
                                                     {"kv_heads", kv_heads}, {"head_dim", head_dim}, {"ffn", ffn}};
  if (task().reads_text()) sizes.emplace_back("vocabulary", vocabulary);
  sizes.emplace_back("positions", positions);
  for (const auto& [name, size] : sizes) {
    require(size > 0 || (size == 0 && !architecture->uses(name)), "model", name, " must be positive: got ", size);
    require(size <= kMaxSize, "model", name, " must be at most ", kMaxSize, ": got ", size);
  }
  if (heads > 0) nn::HeadSplit(attention(), 1);
  require(outputs() == 0 || task().scores(), "model",
          "a head of outputs must replace the head of a model that continues text: got ",
          with_article(architecture->name), ", which ", task().purpose(), "; name another model");
  require(outputs() == 0 || !tied, "model",
          "tied must be false with a head of outputs, which scores no tokens: got true");
  require(!has_values() || task().continues(), "model", "a head of values must stand beside the head of a model that ",
          "continues text: got ", with_article(architecture->name), ", which ", task().purpose(),
          "; name another model");
  require(dropout >= 0 && dropout < 1, "model", "dropout must be in [0, 1): got ", dropout);
  if (!architecture->settle) return;
  ModelShape settled = *this;
  architecture->settle(settled);
  const auto same = [&](const char* name, auto mine, auto wanted) {
    require(mine == wanted, "model", "a shape of architecture ", architecture->name,
            " must have the sizes that follow from its others: got ", name, " ", mine, ", which must be ", wanted);
  };
  same("positions", positions, settled.positions);
  same("tied", tied, settled.tied);
  same("experts", part<MixtureSizes>().experts, settled.part<MixtureSizes>().experts);
  same("multi_token_layers", part<MultiTokenSizes>().layers, settled.part<MultiTokenSizes>().layers);
  require(settled == *this, "model", "a shape of architecture ", architecture->name,
          " must have the sizes that follow from its others; take it from a registry, which sets them");
}

}  // namespace colossal::models
