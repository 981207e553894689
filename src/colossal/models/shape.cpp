#include "colossal/models/shape.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/suggest.h"
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
  const std::string path = folder + "/config.json";
  const auto json = nlohmann::json::parse(read_file(path, 16 << 20), nullptr, false);
  require(!json.is_discarded(), "model", path, " is not JSON");
  return shape_from_json(json);
}

}  // namespace

void ModelShape::validate() const {
  const std::pair<const char*, int64_t> sizes[] = {{"vocabulary", vocabulary}, {"hidden", hidden}, {"layers", layers},
                                                   {"heads", heads}, {"kv_heads", kv_heads}, {"head_dim", head_dim},
                                                   {"ffn", ffn}, {"positions", positions}};
  for (const auto& [name, size] : sizes)
    require(size > 0 && size < (int64_t{1} << 40), "model", name, " must be positive: got ", size);
  nn::HeadSplit(attention(), 1);
  require(architecture != "llama" || head_dim % 2 == 0, "model", "rotary positions need an even head_dim: got ", head_dim);
  require(dropout >= 0 && dropout < 1, "model", "dropout must be in [0, 1): got ", dropout);
}

void ModelConfig::fields(Fields& f) {
  f.text("name", name, "preset: gpt2-tiny .. gpt2-xl, gpt3-175b, llama-tiny .. llama3-70b");
  f.text("from", from, "Hugging Face folder whose sizes and weights to start from; `name` is not used then");
  f.integer("vocabulary", vocabulary, "tokens", "0: the tokenizer's");
  f.integer("hidden", hidden, "features", "width of the hidden state; 0: the preset's");
  f.integer("layers", layers, "layers", "transformer blocks; 0: the preset's");
  f.integer("heads", heads, "heads", "attention heads; 0: the preset's");
  f.integer("kv_heads", kv_heads, "heads", "key and value heads; 0: the preset's, or heads where those were changed");
  f.integer("ffn", ffn, "features", "width inside the feed-forward layer; 0: the preset's");
  f.integer("positions", positions, "tokens", "longest sequence; 0: the preset's");
  f.number("dropout", dropout, "probability", "after the embedding and on each residual branch; -1: the preset's", -1, 0.999);
}

ModelShape resolve(const ModelConfig& config, int64_t tokenizer_vocabulary) {
  const bool from_folder = !config.from.empty();
  ModelShape shape = from_folder ? shape_of_folder(config.from) : preset(config.name);
  const bool changed = config.vocabulary || config.hidden || config.layers || config.heads || config.kv_heads || config.ffn ||
                       config.positions;
  require(!from_folder || !changed, "model", "sizes come from the folder ", config.from,
          ": remove vocabulary, hidden, layers, heads, kv_heads, ffn, positions from [model]");
  auto change = [](int64_t& size, int64_t wanted) {
    if (wanted) size = wanted;
  };
  if (config.hidden) shape.ffn = shape.ffn * config.hidden / shape.hidden;  // keeps the preset's ratio
  change(shape.vocabulary, config.vocabulary || from_folder ? config.vocabulary : tokenizer_vocabulary);
  change(shape.hidden, config.hidden);
  change(shape.layers, config.layers);
  change(shape.kv_heads, config.heads && !config.kv_heads ? config.heads : config.kv_heads);
  change(shape.heads, config.heads);
  change(shape.ffn, config.ffn);
  change(shape.positions, config.positions);
  if (config.hidden || config.heads) {
    require(shape.hidden % shape.heads == 0, "model", "hidden must divide by heads: got hidden ", shape.hidden, ", heads ",
            shape.heads);
    shape.head_dim = shape.hidden / shape.heads;
  }
  if (config.dropout >= 0) shape.dropout = config.dropout;
  shape.validate();
  return shape;
}

}  // namespace colossal::models
