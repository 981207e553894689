#include "colossal/models/shape.h"

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"

namespace colossal::models {
namespace {

ModelShape preset(const std::string& name) {
  for (const Architecture& row : architectures())
    for (const Preset& preset : row.presets())
      if (name == preset.name) return preset.shape;
  std::string all;
  for (const std::string& known : preset_names()) all += (all.empty() ? "" : ", ") + known;
  throw Error("model", concat("unknown preset `", name, "`", did_you_mean(name, preset_names()), "; presets: ", all));
}

ModelShape shape_of_folder(const std::string& folder) {
  return shape_from_json(read_json_object(folder + "/config.json", "model", {.bytes = 16 << 20}));
}

}  // namespace

void ModelShape::validate() const {
  std::vector<std::pair<const char*, int64_t>> sizes{{"hidden", hidden},     {"layers", layers},     {"heads", heads},
                                                     {"kv_heads", kv_heads}, {"head_dim", head_dim}, {"ffn", ffn}};
  const bool sees = models::architecture(architecture).input == Input::Images;
  if (sees) {
    sizes.insert(sizes.end(), {{"side", image.side}, {"channels", image.channels}});
    sizes.insert(sizes.end(), {{"patch", image.patch}, {"classes", image.classes}});
  } else {
    sizes.emplace_back("vocabulary", vocabulary);
  }
  sizes.emplace_back("positions", positions);  // last: those of images follow from the sizes before
  for (const auto& [name, size] : sizes) {
    require(size > 0, "model", name, " must be positive: got ", size);
    require(size <= kLargestSize, "model", name, " must be at most ", kLargestSize, ": got ", size);
  }
  require(!sees || image.side % image.patch == 0, "model", "side must divide by patch: got side ", image.side,
          ", patch ", image.patch);
  nn::HeadSplit(attention(), 1);
  require(architecture != "llama" || head_dim % 2 == 0, "model", "rotary positions need an even head_dim: got ",
          head_dim);
  require(dropout >= 0 && dropout < 1, "model", "dropout must be in [0, 1): got ", dropout);
}

ModelShape resolve(const ModelConfig& config, int64_t tokenizer_vocabulary) {
  const bool from_folder = !config.from.empty();
  ModelShape shape = from_folder ? shape_of_folder(config.from) : preset(config.name);
  const bool changes_text = config.vocabulary || config.positions, changes_images = config.image != ImageShape{};
  const bool changed =
      changes_text || changes_images || config.hidden || config.layers || config.heads || config.kv_heads || config.ffn;
  require(!from_folder || !changed, "model", "sizes come from the folder ", config.from,
          ": remove vocabulary, hidden, layers, heads, kv_heads, ffn, positions, side, channels, patch, classes from "
          "[model]");
  const bool sees = architecture(shape.architecture).input == Input::Images;
  require(sees || !changes_images, "model", "side, channels, patch and classes are sizes of a model of images, not of ",
          config.name);
  require(!sees || !changes_text, "model", "vocabulary and positions are sizes of a model of text, not of ",
          config.name, "; its positions follow from side and patch");
  auto change = [](int64_t& size, int64_t wanted) {
    if (wanted) size = wanted;
  };
  if (config.hidden) shape.ffn = shape.ffn * config.hidden / shape.hidden;  // keeps the preset's ratio
  if (!sees) change(shape.vocabulary, config.vocabulary || from_folder ? config.vocabulary : tokenizer_vocabulary);
  change(shape.hidden, config.hidden);
  change(shape.layers, config.layers);
  change(shape.kv_heads, config.heads && !config.kv_heads ? config.heads : config.kv_heads);
  change(shape.heads, config.heads);
  change(shape.ffn, config.ffn);
  change(shape.positions, config.positions);
  change(shape.image.side, config.image.side);
  change(shape.image.channels, config.image.channels);
  change(shape.image.patch, config.image.patch);
  change(shape.image.classes, config.image.classes);
  if (sees) shape.positions = shape.image.patches() + 1;
  if (config.hidden || config.heads) {
    require(shape.hidden % shape.heads == 0, "model", "hidden must divide by heads: got hidden ", shape.hidden,
            ", heads ", shape.heads);
    shape.head_dim = shape.hidden / shape.heads;
  }
  if (config.dropout >= 0) shape.dropout = config.dropout;
  shape.validate();
  return shape;
}

}  // namespace colossal::models
