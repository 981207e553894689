#include "colossal/models/families/deepseek.h"

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {
namespace {

constexpr int64_t kMaxMultiToken = 64;

}  // namespace

void DeepseekSizes::fields(Fields& f) {
  layout.fields(f);
  f.integer("q_rank", q_rank, "features", "width of the latent of queries; 0 = queries have none", 0, kMaxSize);
  f.integer("kv_rank", kv_rank, "features", "width of the latent of keys and values", 1, kMaxSize);
  f.integer("nope_dim", nope_dim, "of each head", "features of q and k that positions do not rotate", 1, kMaxSize);
  f.integer("rope_dim", rope_dim, "of each head", "features of q and k that positions rotate, an even number", 2,
            kMaxSize);
  f.integer("v_dim", v_dim, "of each head", "features of v, at most nope_dim + rope_dim", 1, kMaxSize);
  f.flag("rope_interleave", rope_interleave, "rotation of neighbours, 0 and 1, instead of features rope_dim / 2 apart");
  f.integer("multi_token_layers", multi_token_layers, "layers",
            "layers after the last block that learn to predict tokens after the next one", 0, kMaxMultiToken);
  f.number("multi_token_loss", multi_token_loss, "", "training: factor of the loss of the multi-token layers", 0, 1e6);
  expert_table(f, experts);
}

namespace deepseek {  // a namespace of its own, because every family has functions of these names

constexpr char kV2[] = "deepseek_v2", kV3[] = "deepseek_v3";

// keys of config.json that several rows have, because the two versions treat them differently
constexpr char kMultiToken[] = "num_nextn_predict_layers", kNormalize[] = "norm_topk_prob", kMethod[] = "topk_method",
               kGroups[] = "n_group", kGroupsUsed[] = "topk_group";

/// Returns the factor of the scores. Yarn's mscale_all_dim divides it out of cosines and sines, where it would scale
/// rotated features alone, and scales q and k as a whole instead.
double score_scale(const DeepseekSizes& own, int64_t head_dim) {
  const ops::RotaryScaling& s = own.layout.rotary.scaling;
  const double mscale = s.factor > 1 && s.mscale_all_dim > 0 ? 0.1 * s.mscale_all_dim * std::log(s.factor) + 1 : 1;
  return mscale * mscale / std::sqrt(static_cast<double>(head_dim));
}

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<DeepseekSizes>();
  BlockVariant block = llama_block(s, own.layout, own.rope_dim);
  block.latent = {
      .q_rank = own.q_rank, .kv_rank = own.kv_rank, .rope_dim = own.rope_dim, .interleaved = own.rope_interleave};
  block.v_head_dim = own.v_dim;
  block.attention.scale = score_scale(own, s.head_dim);
  return make_decoder(s,
                      {.block = block,
                       .blocks = with_experts(block, own.experts, s),
                       .multi_token = {.layers = own.multi_token_layers, .loss = own.multi_token_loss}},
                      layers);
}

void settle(ModelShape& s) {
  const auto own = s.own.as<DeepseekSizes>();
  s.head_dim = own.nope_dim + own.rope_dim;
  require(s.kv_heads == s.heads, "model", "kv_heads of a deepseek must be heads, because every head has keys: got ",
          s.kv_heads, " and ", s.heads, "; remove kv_heads from [model]");
  require(own.v_dim <= s.head_dim, "model", "v_dim must be at most nope_dim + rope_dim: got ", own.v_dim, " and ",
          s.head_dim);
  s.set(LatentSizes{own.kv_rank + own.rope_dim});
  s.set(MultiTokenSizes{s.outputs() > 0 ? 0 : own.multi_token_layers});
  settle_rotary(own.layout.rotary, own.rope_dim, s);
  settle_experts(own.experts, s);
}

/// Returns the own keys that concern training alone.
std::vector<std::string> training_keys() {
  std::vector<std::string> keys = expert_training_keys();
  keys.insert(keys.end(), {"multi_token_layers", "multi_token_loss"});
  return keys;
}

ModelShape sized(LlamaLayoutSizes sizes, const DeepseekSizes& own) {
  sizes.kv_heads = sizes.heads;
  sizes.norm_epsilon = 1e-6;
  sizes.head_dim = own.nope_dim + own.rope_dim;
  return llama_layout(sizes, own);
}

/// Returns rotary positions that were extended from 4,096 tokens 40 times.
LlamaLayoutKeys extended(double mscale) {
  return {
      .rotary = {.type = "yarn",
                 .scaling = {.factor = 40, .original_positions = 4096, .mscale = mscale, .mscale_all_dim = mscale}}};
}

std::vector<Preset> presets() {
  const ExpertKeys tiny{.count = 16,
                        .used = 4,
                        .ffn = 88,
                        .shared = 1,
                        .dense_first = 1,
                        .score = "sigmoid",
                        .groups = 4,
                        .groups_used = 2,
                        .balance_loss = 0,
                        .bias = true,
                        .bias_rate = 0.001};
  const ExpertKeys lite{.count = 64, .used = 6, .ffn = 1408, .shared = 2, .dense_first = 1, .normalize = false};
  const ExpertKeys v3{.count = 256,
                      .used = 8,
                      .ffn = 2048,
                      .shared = 1,
                      .dense_first = 3,
                      .score = "sigmoid",
                      .scale = 2.5,
                      .groups = 8,
                      .groups_used = 4,
                      .balance_loss = 0,
                      .bias = true,
                      .bias_rate = 0.001};
  return {{"deepseek-tiny",
           sized({257, 128, 4, 8, 8, 352, 512, true},
                 {.q_rank = 48, .kv_rank = 32, .nope_dim = 16, .rope_dim = 8, .v_dim = 16, .experts = tiny})},
          {"deepseek-v2-lite",
           sized({102400, 2048, 27, 16, 16, 10944, 163840}, {.layout = extended(0.707), .experts = lite})},
          {"deepseek-v3",
           sized({129280, 7168, 61, 128, 128, 18432, 163840}, {.layout = extended(1), .q_rank = 1536, .experts = v3})}};
}

/// Returns the names of a mixture in a block.
std::vector<nn::ExternalName> mixture_names() {
  return {{"mlp.router.bias", {"mlp.gate.e_score_correction_bias"}},  // before the layer, whose row would take it, too
          {"mlp.router", {"mlp.gate"}},
          {.ours = "mlp.experts.gate_up",
           .parts = {"mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"},
           .stacked = true,
           .joint = "mlp.experts.gate_up_proj"},
          {.ours = "mlp.experts.down",
           .parts = {"mlp.experts.{}.down_proj"},
           .stacked = true,
           .joint = "mlp.experts.down_proj"},
          {"mlp.shared.gate_up", {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"}},
          {"mlp.shared.down", {"mlp.shared_experts.down_proj"}}};
}

/// Returns the prefix of multi-token layer k in a folder, where these layers follow the blocks.
std::string multi_token_prefix(const ModelShape& s, int64_t k) { return concat("model.layers.", s.layers + k, "."); }

std::string multi_token_tensor(const ModelShape& s, int64_t k) {
  return concat("*layers.", s.layers + k, ".eh_proj.weight");  // folders may lack the prefix
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const char* queries = s.own.as<DeepseekSizes>().q_rank > 0 ? "self_attn.q_a_proj" : "self_attn.q_proj";
  std::vector<nn::ExternalName> names{{"attention.latent", {queries, "self_attn.kv_a_proj_with_mqa"}},
                                      {"attention.q_norm", {"self_attn.q_a_layernorm"}},
                                      {"attention.q_up", {"self_attn.q_b_proj"}},
                                      {"attention.kv_norm", {"self_attn.kv_a_layernorm"}},
                                      {"attention.kv_up", {"self_attn.kv_b_proj"}}};
  for (const nn::ExternalName& name : mixture_names()) names.push_back(name);
  for (const char* name : {"enorm", "hnorm", "eh_proj"}) names.push_back({name, {name}});
  names.push_back({"norm", {"shared_head.norm"}});
  FolderNames folder = llama_layout_names(names);
  for (int64_t k = 0; k < s.part<MultiTokenSizes>().layers; ++k)
    folder.further_blocks.emplace_back(concat("head.multi_token.", k, "."), multi_token_prefix(s, k));
  return names_in_folder(s, folder);
}

/// Returns the copies of the embedding and of the head that folders have in their multi-token layers.
std::vector<nn::ExternalCopy> multi_token_copies(const ModelShape& s) {
  const std::string reason = "the multi-token layer",
                    remedy = concat("leave the layer out: set ", kMultiToken, " of config.json to 0");
  const std::string embedding = "model.embed_tokens.weight", head = s.tied ? embedding : "lm_head.weight";
  std::vector<nn::ExternalCopy> copies;
  for (int64_t k = 0; k < s.part<MultiTokenSizes>().layers; ++k) {
    copies.push_back({multi_token_prefix(s, k) + "embed_tokens.weight", embedding, reason, remedy});
    copies.push_back({multi_token_prefix(s, k) + "shared_head.head.weight", head, reason, remedy});
  }
  return copies;
}

std::vector<IgnoredTensor> left_out(const ModelShape& s) {
  if (s.part<MultiTokenSizes>().layers > 0) return {};
  return {{concat("model.layers.", s.layers, ".*"), "the multi-token layer, which guesses the token after the next"}};
}

/// The rows of mixtures. A folder of a dense model has its mixtures after the last block.
void mixture_keys(FolderKeys& k, const ModelShape& s, ExpertKeys& e, bool is_v2) {
  if (k.writes() && e.count == 0) e = {.count = 1, .used = 1, .ffn = 1, .shared = 1, .dense_first = s.layers};
  if (k.writes()) e.ffn = e.options(s).ffn;
  std::string method = e.groups > 1 ? "group_limited_greedy" : "greedy";
  k.fixed("scoring_func", is_v2 ? "softmax" : "sigmoid");
  if (is_v2) {
    k.fixed(kNormalize, false);
    k.choice(kMethod, method, {"greedy", "group_limited_greedy"}, "greedy");
  } else {
    k.fixed(kMethod, "noaux_tc");
  }
  k.fixed("moe_layer_freq", 1);
  k.optional("first_k_dense_replace", e.dense_first, is_v2 ? 0 : 3);
  if (k.reads() && e.dense_first >= s.layers) {
    e = {};
    return;
  }
  k.required("n_routed_experts", e.count);
  k.required("num_experts_per_tok", e.used);
  k.required("moe_intermediate_size", e.ffn);
  k.optional("n_shared_experts", e.shared, is_v2 ? 2 : 1);
  if (k.reads() && e.count == 0) return;
  k.optional("routed_scaling_factor", e.scale, is_v2 ? 1.0 : 2.5);
  if (is_v2) {
    e.normalize = false;
    if (k.reads() && method == "greedy") return;
    k.required(kGroups, e.groups);
    k.required(kGroupsUsed, e.groups_used);
    return;
  }
  k.optional(kNormalize, e.normalize, true);
  k.optional(kGroups, e.groups, 8);
  k.optional(kGroupsUsed, e.groups_used, 4);
  e.score = "sigmoid";
  e.bias = true;
  e.balance_loss = 0;
}

/// Checks the rotary positions that were read. transformers scales scores by any mscale_all_dim; ours needs the form of
/// the paper.
void check_rotary(const FolderConfig& c, const RotaryKeys& rotary) {
  const char* object = rotary_object(c);
  const double all_dim = c.object(object).value("mscale_all_dim", 0.0);
  require(all_dim == 0 || rotary.type == "default" || rotary.scaling.mscale_all_dim == all_dim, "model", object,
          ".mscale_all_dim of a DeepSeek must be 0, or stand beside an mscale and no attention_factor, of type "
          "yarn: got ",
          all_dim, ", type ", rotary.type);
}

template <bool is_v2>
void keys(FolderKeys& k, ModelShape& s, DeepseekSizes& own) {
  llama_layout_keys(k, s, own.layout);
  k.fixed("attention_bias", false);
  k.only("mlp_bias", false);
  k.only("num_key_value_heads", s.heads);
  if (is_v2) k.only(kMultiToken, 0);
  if (k.reads()) check_rotary(k.config(), own.layout.rotary);
  k.or_null("q_lora_rank", own.q_rank, 1536);
  k.optional("kv_lora_rank", own.kv_rank, 512);
  k.optional("qk_nope_head_dim", own.nope_dim, 128);
  k.optional("qk_rope_head_dim", own.rope_dim, 64);
  k.optional("v_head_dim", own.v_dim, 128);
  k.written("head_dim", own.rope_dim);
  if (!is_v2) k.optional("rope_interleave", own.rope_interleave, true);
  if (!is_v2) k.optional(kMultiToken, own.multi_token_layers, 0);
  mixture_keys(k, s, own.experts, is_v2);
  s.head_dim = own.nope_dim + own.rope_dim;
}

ModelShape from_json(const nlohmann::json& j) {
  return read_folder(FolderConfig(j, "DeepSeek"), j.at("model_type") == kV2 ? keys<true> : keys<false>);
}

/// Refuses mixtures that folders of `type` cannot say.
void check_folder(const ExpertKeys& e, const std::string& type) {
  const auto refuse_unless = [&](bool allowed, const char* key, const char* rule) {
    require(allowed, "model", "experts.", key, " must be ", rule, " for a folder of ", type,
            ", because its config.json has no other: got another value");
  };
  refuse_unless(e.every == 1, "every", "1");
  refuse_unless(e.dense.empty(), "dense", "empty");
  refuse_unless(e.shared > 0, "shared", "at least 1");
  refuse_unless(e.bias == (e.score == "sigmoid"), "bias", "true with sigmoid scores and false with softmax scores");
  refuse_unless(e.score == "sigmoid" || !e.normalize, "normalize", "false with softmax scores");
}

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<DeepseekSizes>();
  const ExpertKeys& e = own.experts;
  const bool is_v2 = e.count > 0 && e.score == "softmax";
  if (e.count > 0) check_folder(e, is_v2 ? kV2 : kV3);
  require(!is_v2 || own.rope_interleave, "model", "rope_interleave must be true for a folder of ", kV2,
          ", because its config.json has no key for it: got false");
  require(!is_v2 || own.multi_token_layers == 0, "model", "multi_token_layers must be 0 for a folder of ", kV2,
          ", because its config.json has no key for it: got ", own.multi_token_layers);
  if (is_v2) return write_folder(kV2, "DeepseekV2ForCausalLM", s, keys<true>);
  return write_folder(kV3, "DeepseekV3ForCausalLM", s, keys<false>);
}

}  // namespace deepseek

Architecture deepseek_architecture() {
  using namespace deepseek;
  return {.name = "deepseek",
          .own = DeepseekSizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = kV3,
                           .also = {kV2},
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "model.",
                           .head = "lm_head.weight",
                           .copies_of = multi_token_copies,
                           .ignored = {rotary_table()},
                           .left_out = left_out,
                           .may_lack = {"head.multi_token.*"},
                           .multi_token_key = kMultiToken,
                           .multi_token_tensor = multi_token_tensor,
                           .own_training = training_keys()}};
}

}  // namespace colossal::models
