#include "colossal/models/rotary_keys.h"

#include <algorithm>

#include "colossal/base/article.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {
namespace {

using Kind = ops::RotaryScaling::Kind;

constexpr const char *kScaling = "rope_scaling", *kTheta = "rope_theta", *kType = "rope_type",
                     *kShare = "partial_rotary_factor";

constexpr std::pair<const char*, Kind> kTypes[] = {{"default", Kind::None},    {"linear", Kind::Linear},
                                                   {"dynamic", Kind::Dynamic}, {"yarn", Kind::Yarn},
                                                   {"llama3", Kind::Llama3},   {"longrope", Kind::LongRope}};

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kTypes) names.emplace_back(name);
  return names;
}

Kind kind_of(const std::string& type) {
  for (const auto& [name, kind] : kTypes)
    if (type == name) return kind;
  throw Error("model", concat("rope_type must be one of ", join(type_names()), ": got ", printable(type)));
}

/// Resets the parameters that a type uses. A user must not set the others, because they would have no effect.
ops::RotaryScaling without_those_of(Kind kind, ops::RotaryScaling s) {
  const ops::RotaryScaling none;
  s.kind = none.kind;
  if (kind == Kind::None) return s;
  s.factor = none.factor;
  if (kind != Kind::Linear) s.original_positions = none.original_positions;
  if (kind == Kind::Yarn || kind == Kind::LongRope) s.attention_factor = none.attention_factor;
  if (kind == Kind::Yarn) {
    s.mscale = none.mscale, s.mscale_all_dim = none.mscale_all_dim, s.truncate = none.truncate;
    s.beta_fast = none.beta_fast, s.beta_slow = none.beta_slow;
  }
  if (kind == Kind::Llama3) s.low_freq_factor = none.low_freq_factor, s.high_freq_factor = none.high_freq_factor;
  if (kind == Kind::LongRope) s.short_factor.clear(), s.long_factor.clear();
  return s;
}

}  // namespace

const char* rotary_object(const FolderConfig& config) { return config.has(kScaling) ? kScaling : "rope_parameters"; }

void RotaryKeys::fields(Fields& f) {
  ops::RotaryScaling& s = scaling;
  f.number("rope_theta", theta, "", "base of the rotary frequencies", 1, 1e12);
  f.choice("rope_type", type, type_names(), "method that extends rotary positions beyond rope_original_positions");
  f.number("rope_factor", s.factor, "", "context extension factor, for all types but default", 1e-3, 1e6);
  f.integer("rope_original_positions", s.original_positions, "tokens",
            "maximum sequence length before the extension, for all types but default and linear", 0, kMaxSize);
  f.number("rope_low_frequency_factor", s.low_freq_factor, "",
           "bound of low frequencies (llama3): wavelengths above rope_original_positions / this are extended fully",
           1e-3, 1e6);
  f.number("rope_high_frequency_factor", s.high_freq_factor, "",
           "bound of high frequencies (llama3): wavelengths below rope_original_positions / this are not extended",
           1e-3, 1e6);
  f.number("rope_attention_factor", s.attention_factor, "",
           "factor of cosines and sines (yarn, longrope); 0 = derived from rope_factor", 0, 1e6);
  f.number("rope_mscale", s.mscale, "", "multiplier of log(rope_factor) in the derived attention factor (yarn); 0 = 1",
           0, 1e6);
  f.number("rope_mscale_all_dim", s.mscale_all_dim, "",
           "multiplier of log(rope_factor) in the divisor of the attention factor (yarn); 0 = no divisor", 0, 1e6);
  f.number("rope_beta_fast", s.beta_fast, "rotations",
           "upper bound of rotations (yarn); features that rotate more often are not extended", 1e-3, 1e6);
  f.number("rope_beta_slow", s.beta_slow, "rotations",
           "lower bound of rotations (yarn); features that rotate less often are extended fully", 1e-3, 1e6);
  f.flag("rope_truncate", s.truncate, "rounding of the extended range to whole features (yarn)");
  f.numbers("rope_short_factors", s.short_factor, "",
            "factor of each pair of features, for sequences up to the original positions (longrope)", 1e-6, 1e6);
  f.numbers("rope_long_factors", s.long_factor, "", "factor of each pair of features, for longer sequences (longrope)",
            1e-6, 1e6);
}

bool is_rotary_key(const std::string& name) {
  static const std::vector<KeyHelp> keys = describe_config(RotaryKeys());
  return std::any_of(keys.begin(), keys.end(), [&](const KeyHelp& key) { return key.key == name; });
}

bool has_position_table(const ModelShape& shape) {
  const HuggingFace& folder = shape.architecture->hugging_face;
  if (folder.names == nullptr) return false;
  const std::vector<nn::ExternalName> names = folder.names(shape);
  return std::any_of(names.begin(), names.end(), [](const nn::ExternalName& name) {
    return name.ours == "positions" || name.ours.starts_with("positions.");
  });
}

std::shared_ptr<const ops::RotaryTable> RotaryKeys::table(int64_t rotated) const {
  ops::RotaryScaling its = scaling;
  its.kind = kind_of(type);
  return std::make_shared<const ops::RotaryTable>(rotated, theta, its);
}

void settle_rotary(const RotaryKeys& keys, int64_t rotated, ModelShape& s) {
  require(rotated > 0 && rotated % 2 == 0 && rotated <= s.head_dim, "model",
          "rotary positions need an even number of features of a head: got ", rotated, " of a head_dim of ",
          s.head_dim);
  const ops::RotaryScaling& numbers = keys.scaling;
  const Kind kind = kind_of(keys.type);
  require(without_those_of(kind, numbers) == ops::RotaryScaling(), "model", "rope_type ", keys.type,
          " does not use all rope_ keys that are set; set rope_type to the type that does (rope_factor with "
          "rope_low_frequency_factor: llama3), or remove keys");
  require(kind == Kind::None || kind == Kind::Linear || numbers.original_positions > 0, "model", "rope_type ",
          keys.type, " needs rope_original_positions above 0: got ", numbers.original_positions,
          "; set model.rope_original_positions to the longest sequence that the weights were trained on");
  if (kind == Kind::LongRope)
    for (const std::vector<double>* factors : {&numbers.short_factor, &numbers.long_factor})
      require(static_cast<int64_t>(factors->size()) == rotated / 2, "model",
              "rope_short_factors and rope_long_factors must have one value for each pair of the ", rotated,
              " rotated features: got ", factors->size());
  require(numbers.attention_factor == 0 || (numbers.mscale == 0 && numbers.mscale_all_dim == 0), "model",
          "rope_attention_factor excludes rope_mscale and rope_mscale_all_dim, which define the same value: got all; "
          "set either it or both of them");
  require((numbers.mscale == 0) == (numbers.mscale_all_dim == 0), "model",
          "rope_mscale and rope_mscale_all_dim must be set together: got ", numbers.mscale, " and ",
          numbers.mscale_all_dim, "; set both or none");
  if (kind == Kind::Dynamic || kind == Kind::LongRope)
    s.set(LongTexts{.even_positions = numbers.original_positions, .even_beyond = kind == Kind::LongRope});
  if (kind != Kind::Dynamic) return;
  require(numbers.factor >= 1, "model", "rope_type dynamic needs a rope_factor of at least 1, because positions are ",
          "rope_original_positions * rope_factor: got ", numbers.factor);
  s.positions = static_cast<int64_t>(static_cast<double>(numbers.original_positions) * numbers.factor);
}

namespace {

/// The rows of the rotary object `k` in `config` that types other than default have.
void scaling_keys(FolderKeys& k, Kind kind, ops::RotaryScaling& s, const FolderConfig* config,
                  const RotaryReading& reading) {
  const bool is_yarn = kind == Kind::Yarn, is_longrope = kind == Kind::LongRope, is_llama3 = kind == Kind::Llama3;
  const auto positions = k.reads() ? config->at<int64_t>("max_position_embeddings") : 0;
  if (k.reads() && kind == Kind::Dynamic) s.original_positions = positions;
  if (is_yarn || is_llama3 || is_longrope) {
    constexpr const char* kOriginal = "original_max_position_embeddings";
    k.optional(kOriginal, s.original_positions, positions);
    if (k.reads())  // a value outside of the object takes precedence
      s.original_positions = config->value(kOriginal, reading.original > 0 ? reading.original : s.original_positions);
  }
  if (k.reads() && (is_yarn || is_longrope) && !k.config().has("factor"))
    s.factor = static_cast<double>(positions) / static_cast<double>(std::max<int64_t>(1, s.original_positions));
  else
    k.required("factor", s.factor);
  if (is_llama3) {
    k.required("low_freq_factor", s.low_freq_factor);
    k.required("high_freq_factor", s.high_freq_factor);
  }
  if (is_yarn || is_longrope) k.omitted("attention_factor", s.attention_factor, 0);
  if (is_yarn) {
    const ops::RotaryScaling usual;
    k.optional("beta_fast", s.beta_fast, usual.beta_fast);
    k.optional("beta_slow", s.beta_slow, usual.beta_slow);
    if (s.beta_fast == 0) s.beta_fast = usual.beta_fast;
    if (s.beta_slow == 0) s.beta_slow = usual.beta_slow;
    k.omitted("mscale", s.mscale, 0);
    k.omitted("mscale_all_dim", s.mscale_all_dim, 0);
    if (s.attention_factor != 0 || s.mscale == 0 || s.mscale_all_dim == 0) s.mscale = s.mscale_all_dim = 0;
    k.optional("truncate", s.truncate, true);
  }
  if (is_longrope) {
    k.required("short_factor", s.short_factor);
    k.required("long_factor", s.long_factor);
  }
}

RotaryKeys read_rotary(const FolderConfig& config, const RotaryReading& reading) {
  const char* name = rotary_object(config);
  const FolderConfig c = config.object(name);
  if (reading.whole)
    for (const FolderConfig* where : {&config, &c}) where->must_be(kShare, 1);
  for (const char* layers : {"full_attention", "sliding_attention"})
    require(!c.has(layers), "model", name, " of ", with_article(config.family()),
            " must be the same for all layers: got separate keys for ", layers);
  RotaryKeys keys{.theta = c.value(kTheta, config.value(kTheta, reading.theta)),
                  .type = c.value(kType, c.value("type", "default").c_str())};
  for (const auto& [theirs, ours] : reading.renamed)
    if (keys.type == theirs) keys.type = ours;
  FolderKeys k(c);
  if (const Kind kind = kind_of(keys.type); kind != Kind::None) scaling_keys(k, kind, keys.scaling, &config, reading);
  return keys;
}

}  // namespace

void rotary_keys(FolderKeys& k, RotaryKeys& keys, const RotaryReading& reading) {
  if (k.reads()) {
    keys = read_rotary(k.config(), reading);
    return;
  }
  const Kind kind = kind_of(keys.type);
  nlohmann::json object;
  if (kind == Kind::Dynamic) k.written("max_position_embeddings", keys.scaling.original_positions);
  if (kind != Kind::None) {
    object[kType] = keys.type;
    FolderKeys inside(object);
    scaling_keys(inside, kind, keys.scaling, nullptr, reading);
  }
  k.written(kTheta, keys.theta);
  k.written(kScaling, object);
}

void rotary_share_key(FolderKeys& k, const char* key, double& share, double otherwise) {
  k.optional(key, share, otherwise);
  if (k.reads()) share = k.config().object(rotary_object(k.config())).value(kShare, share);
}

}  // namespace colossal::models
