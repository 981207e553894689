#include "colossal/checkpoint/gguf/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/checkpoint/gguf/latent.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

constexpr char kLlama[] = "rope_freqs.weight", kLong[] = "rope_factors_long.weight",
               kShort[] = "rope_factors_short.weight";

/// Returns the divisors of the frequencies, one per pair of features; none = the file has no such tensor.
std::optional<std::vector<double>> factors(const formats::GgufFile& file, const std::string& name) {
  for (const formats::GgufTensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    require(std::string(tensor.type->name) == "F32" && tensor.shape.size() == 1, "gguf", file.path(), ": ", name,
            " must be a list of F32");
    std::vector<float> values(static_cast<size_t>(tensor.numbers()));
    decode_gguf(*tensor.type, file.bytes(tensor).data(), tensor.numbers(), values.data());
    std::vector<double> found;
    for (const float value : values) found.push_back(shortest_double(value));
    return found;
  }
  return {};
}

/// Returns the factors that rope_type llama3 stands for: waves longer than the original positions are stretched, short
/// ones are not.
/// See: arXiv:2407.21783 and modeling_rope_utils.py of transformers.
std::vector<float> llama3_factors(const json& scaling, double theta, int64_t features) {
  const auto factor = scaling.at("factor").get<double>(), low = scaling.at("low_freq_factor").get<double>(),
             high = scaling.at("high_freq_factor").get<double>(),
             original = scaling.at("original_max_position_embeddings").get<double>();
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
std::optional<json> as_llama3(const std::vector<double>& found, double theta) {
  const double most = *std::max_element(found.begin(), found.end());
  const json scaling{{"rope_type", "llama3"},
                     {"factor", most},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192}};
  const std::vector<float> its = llama3_factors(scaling, theta, 2 * static_cast<int64_t>(found.size()));
  for (size_t i = 0; i < found.size(); ++i)
    if (std::fabs(its[i] - found[i]) > 1e-5 * found[i]) return {};
  return scaling;
}

/// Returns longrope's default factor of cosines and sines.
double longrope_attention(double positions, double original) {
  return positions > original && original > 1 ? std::sqrt(1 + std::log(positions / original) / std::log(original)) : 1;
}

json read_scaling(const formats::GgufFile& file, const std::string& prefix, const json& config) {
  const auto positions = config.at("max_position_embeddings").get<int64_t>();
  const int64_t original = file.integer(prefix + "rope.scaling.original_context_length", positions);
  if (const auto all = factors(file, kLlama)) {
    if (const auto scaling = as_llama3(*all, config.value("rope_theta", 10000.0))) return *scaling;
    return {{"rope_type", "longrope"}, {"factor", 1.0},       {"attention_factor", 1.0},
            {"short_factor", *all},    {"long_factor", *all}, {"original_max_position_embeddings", positions}};
  }
  const auto far = factors(file, kLong), near = factors(file, kShort);
  if (far && near) {
    json scaling{{"rope_type", "longrope"},
                 {"long_factor", *far},
                 {"short_factor", *near},
                 {"original_max_position_embeddings", original}};
    // Drops a factor that follows from the positions, because the file has it only in fp32.
    const double follows = longrope_attention(static_cast<double>(positions), static_cast<double>(original));
    const double factor =
        file.has(prefix + "rope.scaling.attn_factor") ? file.real(prefix + "rope.scaling.attn_factor") : follows;
    if (std::fabs(factor - follows) > 1e-6 * follows)
      scaling["attention_factor"] = shortest_double(static_cast<float>(factor));
    return scaling;
  }
  const std::string type = file.text(prefix + "rope.scaling.type", std::string("none"));
  if (type == "none") return nullptr;
  require(type == "linear" || type == "yarn", "gguf", file.path(), ": ", prefix, "rope.scaling.type must be none, ",
          "linear or yarn if the file has no frequency factors: got ", printable(type));
  json scaling{{"rope_type", type},
               {"factor", shortest_double(static_cast<float>(file.real(prefix + "rope.scaling.factor")))}};
  if (type == "linear") return scaling;
  scaling["original_max_position_embeddings"] = original;
  for (const char* beta : {"beta_fast", "beta_slow"})
    if (const std::string key = prefix + "rope.scaling.yarn_" + beta; file.has(key))
      scaling[beta] = shortest_double(static_cast<float>(file.real(key)));
  if (const std::string key = prefix + "rope.scaling.yarn_log_multiplier"; file.has(key)) {
    const double multiplier = shortest_double(static_cast<float>(file.real(key)));
    // llama.cpp takes both for equal, so the factor of cosines and sines is 1.
    if (multiplier != 0)
      scaling["mscale"] = scaling["mscale_all_dim"] = shortest_double(static_cast<float>(10 * multiplier));
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
  const json scaling = read_scaling(file, prefix, config);
  config["rope_scaling"] = scaling;
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
  const json scaling = config.value("rope_scaling", json());
  if (scaling.is_null()) return;
  const auto type = scaling.at("rope_type").get<std::string>();
  const auto refuse = [&](bool ok, const std::string& what) {
    require(ok, "gguf", "GGUF files cannot store ", what, " of rotary positions; keep the model as a folder");
  };
  if (type == "llama3") {
    model.tensors.emplace_back(kLlama, llama3_factors(scaling, config.value("rope_theta", 10000.0), turned));
  } else if (type == "longrope") {
    const auto far = scaling.at("long_factor").get<std::vector<float>>();
    const auto near = scaling.at("short_factor").get<std::vector<float>>();
    if (std::string(family.architecture) == "phi3") {
      const double follows = longrope_attention(config.at("max_position_embeddings").get<double>(),
                                                config.at("original_max_position_embeddings").get<double>());
      model.values[prefix + "rope.scaling.attn_factor"] =
          formats::GgufValue::real(scaling.value("attention_factor", follows));
      model.tensors = {{kLong, far}, {kShort, near}};
    } else {
      refuse(far == near && scaling.value("attention_factor", 0.0) == 1, "longrope");
      model.tensors.emplace_back(kLlama, far);
    }
  } else {
    refuse(type == "linear" || type == "yarn", "rope_type " + type);
    model.values[prefix + "rope.scaling.type"] = formats::GgufValue::text(type);
    model.values[prefix + "rope.scaling.factor"] = formats::GgufValue::real(scaling.at("factor").get<double>());
    if (type == "linear") return;
    refuse(!scaling.contains("attention_factor"), "attention_factor");
    if (has_latent(family)) {
      const double all = scaling.value("mscale_all_dim", 0.0);
      refuse(all > 0 && scaling.value("mscale", 0.0) == all, "an mscale other than mscale_all_dim");
      model.values[prefix + "rope.scaling.yarn_log_multiplier"] = formats::GgufValue::real(0.1 * all);
    } else {
      for (const char* key : {"mscale", "mscale_all_dim"}) refuse(!scaling.contains(key), key);
    }
    refuse(scaling.value("truncate", true), "truncate = false");
    model.values[prefix + "rope.scaling.original_context_length"] =
        formats::GgufValue::integer(scaling.at("original_max_position_embeddings").get<int64_t>());
    for (const char* beta : {"beta_fast", "beta_slow"})
      if (scaling.contains(beta))
        model.values[prefix + "rope.scaling.yarn_" + beta] = formats::GgufValue::real(scaling[beta].get<double>());
  }
}

}  // namespace colossal::checkpoint
