#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/llama_layout.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

struct Phi3Sizes {
  LlamaLayoutKeys layout{};
  double rotary = 1;   ///< share of each head that is rotated
  int64_t window = 0;  ///< positions to which a token attends, including itself; 0 = all before it
  void fields(Fields& f);
  bool operator==(const Phi3Sizes&) const = default;
};

void Phi3Sizes::fields(Fields& f) {
  layout.fields(f);
  f.number("rotary", rotary, "of each head", "share of the features that rotary positions rotate", 0, 1);
  f.integer("window", window, "tokens", "attention window, including the token itself; 0 = no limit", 0, kMaxSize);
}

namespace phi3 {  // a namespace of its own, because every family has functions of these names

int64_t turned_features(const ModelShape& s, const Phi3Sizes& own) {
  return static_cast<int64_t>(static_cast<double>(s.head_dim) * own.rotary);
}

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<Phi3Sizes>();
  BlockVariant block = llama_block(s, own.layout, turned_features(s, own));
  block.attention.window = own.window;
  return make_decoder(s, {.block = block}, layers);
}

void settle(ModelShape& s) {
  const auto own = s.own.as<Phi3Sizes>();
  settle_rotary(own.layout.rotary, turned_features(s, own), s);
  s.set(SlidingWindow{own.window});
  const std::string& type = own.layout.rotary.type;
  require(type == "default" || type == "longrope", "model", "rope_type of a Phi-3 must be default or longrope: got ",
          type);
}

std::vector<Preset> presets() {
  const auto windowed = [](int64_t window) { return Phi3Sizes{.window = window}; };
  return {{"phi3-tiny", llama_layout({257, 128, 4, 8, 4, 352, 512}, windowed(64))},
          {"phi3-mini", llama_layout({32064, 3072, 32, 32, 32, 8192, 4096}, windowed(2047))},
          {"phi3-medium", llama_layout({32064, 5120, 40, 40, 10, 17920, 4096}, windowed(2047))}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  return names_in_folder(
      s, llama_layout_names({{"attention.qkv", {"self_attn.qkv_proj"}}, {"mlp.gate_up", {"mlp.gate_up_proj"}}}));
}

void keys(FolderKeys& k, ModelShape& s, Phi3Sizes& own) {
  const RotaryReading rotary{.renamed = {{"su", "longrope"}, {"yarn", "longrope"}}, .original = 4096};
  llama_layout_keys(k, s, own.layout, {.norm_epsilon = 1e-5, .rotary = rotary});
  const int64_t original = own.layout.rotary.scaling.original_positions;
  k.written("original_max_position_embeddings", original > 0 ? original : s.positions);
  rotary_share_key(k, "partial_rotary_factor", own.rotary, 1);
  k.or_null("sliding_window", own.window, 0);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "Phi-3"), keys); }

void check_training(const FolderConfig& c, const ModelShape&) {
  for (const char* key : {"attention_dropout", "resid_pdrop"}) c.must_be_to_train(key, 0);
}

nlohmann::json to_json(const ModelShape& s) {
  nlohmann::json j = write_folder("phi3", "Phi3ForCausalLM", s, keys);
  write_tokens(j, s.vocabulary, 32000);
  return j;
}

}  // namespace phi3

Architecture phi3_architecture() {
  using namespace phi3;
  return {.name = "phi3",
          .own = Phi3Sizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "phi3",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = check_training,
                           .prefix = "model.",
                           .head = "lm_head.weight",
                           .ignored = {rotary_table()}}};
}

}  // namespace colossal::models
