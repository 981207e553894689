#include "colossal/models/config.h"

#include "colossal/base/error.h"

namespace colossal::models {

void ModelConfig::common_fields(Fields& f) {
  f.text("name", name, "preset, such as gpt2-tiny; `colossal models` lists all");
  f.text("from", from,
         "source of sizes and initial weights; replaces `name`: a Hugging Face folder, a run folder (its newest "
         "checkpoint) or a GGUF file, whose weights may be quantized only if adapters train on them");
  f.integer("vocabulary", vocabulary, "tokens", "vocabulary size; 0 = the tokenizer's", 0, kMaxSize);
  f.integer("hidden", hidden, "features", "width of the hidden state; 0 = the preset's", 0, kMaxSize);
  f.integer("layers", layers, "layers", "number of transformer blocks; 0 = the preset's", 0, kMaxSize);
  f.integer("heads", heads, "heads", "number of attention heads; 0 = the preset's", 0, kMaxSize);
  f.integer("kv_heads", kv_heads, "heads",
            "number of key and value heads; 0 = the preset's, or the value of heads if that was changed and the preset "
            "has several",
            0, kMaxSize);
  f.integer("ffn", ffn, "features", "width inside the feed-forward layer; 0 = the preset's", 0, kMaxSize);
  f.integer("positions", positions, "tokens",
            "maximum sequence length; 0 = the preset's, or the folder's, which may be extended if it has no table of "
            "positions",
            0, kMaxSize);
  f.number("dropout", dropout, "probability",
           "dropout probability after the embedding and on each residual branch; -1 = the preset's", -1, 0.999);
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

std::vector<KeyHelp> describe_own(const OwnSizes& own) {
  std::vector<KeyHelp> keys = describe_config(own);
  for (KeyHelp& key : keys) key.section = key.section_help = "";
  return keys;
}

void set_types(ModelConfig& config, const OwnSizes& own) {
  for (const KeyHelp& key : describe_config(own)) {
    const std::string name = "model." + key.key;
    const auto given = config.own.values().find(name);
    if (given != config.own.values().end() && given->second.raw)
      config.own.set(concat("--", name, "=", key.default_value));
  }
}

std::vector<std::string> use_present_names(ModelConfig& config, const OwnSizes& own) {
  std::vector<std::string> notices;
  for (const KeyHelp& key : describe_config(own)) {
    const std::string table = key.section.empty() ? "model." : concat("model.", key.section, ".");
    const std::string previous = table + key.previous, now = "model." + key.key;
    if (!key.previous.empty() && config.own.rename(previous, now)) notices.push_back(concat(previous, " is now ", now));
  }
  return notices;
}

}  // namespace colossal::models
