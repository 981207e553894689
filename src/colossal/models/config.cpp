#include "colossal/models/config.h"

#include "colossal/models/sizes.h"

namespace colossal::models {

void ModelConfig::common_fields(Fields& f) {
  f.text("name", name, "preset, such as gpt2-tiny; `colossal models` lists them");
  f.text("from", from, "Hugging Face folder whose sizes and weights to start from; `name` is not used then");
  f.integer("vocabulary", vocabulary, "tokens", "0: the tokenizer's", 0, kLargestSize);
  f.integer("hidden", hidden, "features", "width of the hidden state; 0: the preset's", 0, kLargestSize);
  f.integer("layers", layers, "layers", "transformer blocks; 0: the preset's", 0, kLargestSize);
  f.integer("heads", heads, "heads", "attention heads; 0: the preset's", 0, kLargestSize);
  f.integer("kv_heads", kv_heads, "heads",
            "key and value heads; 0: the preset's, or heads where those were changed and it has several", 0,
            kLargestSize);
  f.integer("ffn", ffn, "features", "width inside the feed-forward layer; 0: the preset's", 0, kLargestSize);
  f.integer("positions", positions, "tokens", "longest sequence; 0: the preset's", 0, kLargestSize);
  f.number("dropout", dropout, "probability", "after the embedding and on each residual branch; -1: the preset's", -1,
           0.999);
}

void ModelConfig::fields(Fields& f) {
  common_fields(f);
  f.rest(own);
}

ConfigDocument own_keys(const std::vector<std::string>& assignments) {
  ConfigDocument keys;
  for (const std::string& assignment : assignments) keys.set("--model." + assignment);
  return keys;
}

}  // namespace colossal::models
