#include "colossal/checkpoint/gguf/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/checkpoint/gguf/latent.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

constexpr char kScaling[] = "rope_scaling";  // key of config.json
constexpr char kLlama[] = "rope_freqs.weight", kLong[] = "rope_factors_long.weight",
               kShort[] = "rope_factors_short.weight";

using Factors = std::vector<double>;

/// The object rope_scaling of config.json.
struct RopeScaling {
  std::string type;
  std::optional<double> factor{}, low{}, high{};
  std::optional<int64_t> original{};  ///< positions before the extension
  std::optional<Factors> short_factors{}, long_factors{};
  std::optional<double> attention{}, beta_fast{}, beta_slow{}, mscale{}, mscale_all_dim{};
  std::optional<bool> truncates{};

  void fields(Fields& f) {
    const auto put = [&](const char* name, auto& value, bool is_needed = false) {
      f.optional(!value.has_value()).member(name, value);
      require(value.has_value() || !is_needed, "gguf", "rope_scaling must have ", name, " for the rope_type ",
              printable(type));
    };
    f.member("rope_type", type);
    const bool is_llama3 = type == "llama3", is_yarn = type == "yarn", is_longrope = type == "longrope";
    put("factor", factor, is_llama3 || is_yarn || type == "linear");
    put("low_freq_factor", low, is_llama3), put("high_freq_factor", high, is_llama3);
    put("original_max_position_embeddings", original, is_llama3 || is_yarn);
    put("short_factor", short_factors, is_longrope), put("long_factor", long_factors, is_longrope);
    put("attention_factor", attention), put("beta_fast", beta_fast), put("beta_slow", beta_slow);
    put("mscale", mscale), put("mscale_all_dim", mscale_all_dim), put("truncate", truncates);
  }
};

/// Returns the divisors of the frequencies, one per pair of features; none = the file has no such tensor.
std::optional<Factors> factors(const formats::GgufFile& file, const std::string& name) {
  for (const formats::GgufTensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    require(std::string(tensor.type->name) == "F32" && tensor.shape.size() == 1, "gguf", file.path(), ": ", name,
            " must be a list of F32");
    std::vector<float> values(static_cast<size_t>(tensor.numbers()));
    decode_gguf(*tensor.type, file.bytes(tensor).data(), tensor.numbers(), values.data());
    Factors found;
    for (const float value : values) found.push_back(shortest_double(value));
    return found;
  }
  return {};
}

/// Returns the factors that rope_type llama3 stands for: waves longer than the original positions are stretched, short
/// ones are not.
/// See: arXiv:2407.21783 and modeling_rope_utils.py of transformers.
std::vector<float> llama3_factors(const RopeScaling& scaling, double theta, int64_t features) {
  const double factor = *scaling.factor, low = *scaling.low, high = *scaling.high;
  const auto original = static_cast<double>(*scaling.original);
  std::vector<float> found;
  for (int64_t i = 0; i < features; i += 2) {
    const double turns =
        original / (2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(features)));
    const double smooth = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    found.push_back(static_cast<float>(1 / ((1 - smooth) / factor + smooth)));
  }
  return found;
}

/// Returns the scaling of Meta's models if `found` are its factors.
std::optional<RopeScaling> as_llama3(const Factors& found, double theta) {
  const double most = *std::max_element(found.begin(), found.end());
  const RopeScaling scaling{.type = "llama3", .factor = most, .low = 1.0, .high = 4.0, .original = 8192};
  const std::vector<float> its = llama3_factors(scaling, theta, 2 * static_cast<int64_t>(found.size()));
  for (size_t i = 0; i < found.size(); ++i)
    if (std::fabs(its[i] - found[i]) > 1e-5 * found[i]) return {};
  return scaling;
}

/// Returns a number of a file, which has it in fp32, with as few digits.
double shortened(double value) { return shortest_double(static_cast<float>(value)); }

double theta_of(const json& config) { return config.value("rope_theta", 10000.0); }

/// GGUF's keys of the members that say where yarn extends positions.
constexpr std::pair<const char*, std::optional<double> RopeScaling::*> kBetas[] = {
    {"rope.scaling.yarn_beta_fast", &RopeScaling::beta_fast}, {"rope.scaling.yarn_beta_slow", &RopeScaling::beta_slow}};

/// Returns longrope's default factor of cosines and sines.
double longrope_attention(double positions, double original) {
  return positions > original && original > 1 ? std::sqrt(1 + std::log(positions / original) / std::log(original)) : 1;
}

std::optional<RopeScaling> read_scaling(const formats::GgufFile& file, const std::string& prefix, const json& config) {
  const auto positions = config.at("max_position_embeddings").get<int64_t>();
  const int64_t original = file.integer(prefix + "rope.scaling.original_context_length", positions);
  if (const auto all = factors(file, kLlama)) {
    if (const auto scaling = as_llama3(*all, theta_of(config))) return scaling;
    return RopeScaling{.type = "longrope",
                       .factor = 1.0,
                       .original = positions,
                       .short_factors = all,
                       .long_factors = all,
                       .attention = 1.0};
  }
  const auto far = factors(file, kLong), near = factors(file, kShort);
  if (far && near) {
    RopeScaling scaling{.type = "longrope", .original = original, .short_factors = near, .long_factors = far};
    // Drops a factor that follows from the positions, because the file has it only in fp32.
    const double follows = longrope_attention(static_cast<double>(positions), static_cast<double>(original));
    const double factor =
        file.has(prefix + "rope.scaling.attn_factor") ? file.real(prefix + "rope.scaling.attn_factor") : follows;
    if (std::fabs(factor - follows) > 1e-6 * follows) scaling.attention = shortened(factor);
    return scaling;
  }
  const std::string type = file.text(prefix + "rope.scaling.type", std::string("none"));
  if (type == "none") return std::nullopt;
  require(type == "linear" || type == "yarn", "gguf", file.path(), ": ", prefix, "rope.scaling.type must be none, ",
          "linear or yarn if the file has no frequency factors: got ", printable(type));
  RopeScaling scaling{.type = type, .factor = shortened(file.real(prefix + "rope.scaling.factor"))};
  if (type == "linear") return scaling;
  scaling.original = original;
  for (const auto& [name, beta] : kBetas)
    if (const std::string key = prefix + name; file.has(key)) scaling.*beta = shortened(file.real(key));
  if (const std::string key = prefix + "rope.scaling.yarn_log_multiplier"; file.has(key)) {
    const double multiplier = shortened(file.real(key));
    // llama.cpp takes both for equal, so the factor of cosines and sines is 1.
    if (multiplier != 0) scaling.mscale = scaling.mscale_all_dim = shortened(10 * multiplier);
  }
  return scaling;
}

int64_t head_dim_of(const json& config) {
  const auto heads = config.value("num_attention_heads", config.value("n_head", int64_t{1}));
  const auto hidden = config.value("hidden_size", config.value("n_embd", int64_t{0}));
  return config.value("head_dim", hidden / std::max<int64_t>(1, heads));
}

/// Returns the key of config.json for the fraction of a head that is rotated; null = all of it.
const char* share_key(const GgufFamily& family) {
  const std::string name = family.architecture;
  return name == "gptneox" ? "rotary_pct" : name == "phi3" ? "partial_rotary_factor" : nullptr;
}

/// Returns true if the family has rotary positions.
bool turns(const GgufFamily& family) {
  const std::string name = family.architecture;
  return name != "gpt2" && name != "bloom";
}

}  // namespace

bool is_rope_factors(const std::string& tensor) { return tensor == kLlama || tensor == kLong || tensor == kShort; }

void read_gguf_rotary(const formats::GgufFile& file, const GgufFamily& family, json& config) {
  if (!turns(family)) return;
  const std::string prefix = concat(family.architecture, ".");
  const int64_t head_dim = head_dim_of(config), turned = file.integer(prefix + "rope.dimension_count", head_dim);
  if (const char* share = share_key(family)) {
    config[share] = static_cast<double>(turned) / static_cast<double>(std::max<int64_t>(1, head_dim));
  } else {
    require(turned == head_dim, "gguf", file.path(), ": ", prefix,
            "rope.dimension_count must be the features of a head, ", head_dim, ": got ", turned);
  }
  const std::optional<RopeScaling> scaling = read_scaling(file, prefix, config);
  config[kScaling] = scaling ? json(to_json_object(*scaling)) : json();
  if (config.contains("rope_theta")) config["rotary_emb_base"] = config["rope_theta"];
  if (std::string(family.architecture) == "phi3")
    config["original_max_position_embeddings"] = file.integer(prefix + "rope.scaling.original_context_length",
                                                              config.at("max_position_embeddings").get<int64_t>());
}

void write_gguf_rotary(const json& config, const GgufFamily& family, GgufModel& model) {
  if (!turns(family)) return;
  const std::string prefix = concat(family.architecture, ".");
  const int64_t head_dim = head_dim_of(config);
  const char* share = share_key(family);
  const auto turned =
      static_cast<int64_t>(std::llround(static_cast<double>(head_dim) * (share ? config.value(share, 1.0) : 1.0)));
  model.values[prefix + "rope.dimension_count"] = formats::GgufValue::integer(turned);
  if (std::string(family.architecture) == "phi3")
    model.values[prefix + "rope.scaling.original_context_length"] =
        formats::GgufValue::integer(config.at("original_max_position_embeddings").get<int64_t>());
  const json object = config.value(kScaling, json());
  if (object.is_null()) return;
  const auto scaling = read_stored<RopeScaling>(object, "gguf");
  const std::string& type = scaling.type;
  const auto refuse = [&](bool ok, const std::string& what) {
    require(ok, "gguf", "GGUF files cannot store ", what, " of rotary positions; keep the model as a folder");
  };
  if (type == "llama3") {
    model.tensors.emplace_back(kLlama, llama3_factors(scaling, theta_of(config), turned));
  } else if (type == "longrope") {
    const std::vector<float> far(scaling.long_factors->begin(), scaling.long_factors->end());
    const std::vector<float> near(scaling.short_factors->begin(), scaling.short_factors->end());
    if (std::string(family.architecture) == "phi3") {
      const double follows = longrope_attention(config.at("max_position_embeddings").get<double>(),
                                                config.at("original_max_position_embeddings").get<double>());
      model.values[prefix + "rope.scaling.attn_factor"] = formats::GgufValue::real(scaling.attention.value_or(follows));
      model.tensors = {{kLong, far}, {kShort, near}};
    } else {
      refuse(far == near && scaling.attention == 1.0, "longrope");
      model.tensors.emplace_back(kLlama, far);
    }
  } else {
    refuse(type == "linear" || type == "yarn", "rope_type " + type);
    model.values[prefix + "rope.scaling.type"] = formats::GgufValue::text(type);
    model.values[prefix + "rope.scaling.factor"] = formats::GgufValue::real(*scaling.factor);
    if (type == "linear") return;
    refuse(!scaling.attention, "attention_factor");
    if (has_latent(family)) {
      const double all = scaling.mscale_all_dim.value_or(0);
      refuse(all > 0 && scaling.mscale == all, "an mscale other than mscale_all_dim");
      model.values[prefix + "rope.scaling.yarn_log_multiplier"] = formats::GgufValue::real(0.1 * all);
    } else {
      refuse(!scaling.mscale, "mscale");
      refuse(!scaling.mscale_all_dim, "mscale_all_dim");
    }
    refuse(scaling.truncates.value_or(true), "truncate = false");
    model.values[prefix + "rope.scaling.original_context_length"] = formats::GgufValue::integer(*scaling.original);
    for (const auto& [name, beta] : kBetas)
      if (scaling.*beta) model.values[prefix + name] = formats::GgufValue::real(*(scaling.*beta));
  }
}

}  // namespace colossal::checkpoint
