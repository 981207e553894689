#include "colossal/models/rotary_keys.h"

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/sizes.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {

void RotaryKeys::fields(Fields& f) {
  f.number("rope_theta", theta, "", "base of the rotary frequencies", 1, 1e12);
  f.number("rope_factor", factor, "",
           "LLaMA 3: how far low frequencies are stretched for sequences longer than rope_original_positions; 1: not",
           1, 1e6);
  f.number("rope_low_frequency_factor", low_frequency_factor, "",
           "waves longer than rope_original_positions / this are stretched whole", 1e-3, 1e6);
  f.number("rope_high_frequency_factor", high_frequency_factor, "",
           "waves shorter than rope_original_positions / this are left as they are", 1e-3, 1e6);
  f.integer("rope_original_positions", original_positions, "tokens", "longest sequence before the stretch", 1,
            kLargestSize);
}

std::shared_ptr<const ops::RotaryTable> RotaryKeys::table(int64_t head_dim) const {
  ops::RotaryScaling scaling;
  if (factor != 1)
    scaling = {.kind = ops::RotaryScaling::Kind::Llama3,
               .factor = factor,
               .original_positions = original_positions,
               .low_freq_factor = low_frequency_factor,
               .high_freq_factor = high_frequency_factor};
  return std::make_shared<const ops::RotaryTable>(head_dim, theta, scaling);
}

RotaryKeys read_rotary(const FolderConfig& config) {
  const FolderConfig scaling = config.object(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  RotaryKeys keys{.theta = scaling.value("rope_theta", config.value("rope_theta", 10000.0))};
  const std::string type = scaling.value("rope_type", scaling.value("type", "default").c_str());
  if (type == "default") return keys;
  require(type == "llama3", "model", "rope_scaling of type llama3 or default is supported: got ", printable(type));
  keys.factor = scaling.at<double>("factor");
  keys.low_frequency_factor = scaling.at<double>("low_freq_factor");
  keys.high_frequency_factor = scaling.at<double>("high_freq_factor");
  keys.original_positions = scaling.at<int64_t>("original_max_position_embeddings");
  return keys;
}

void write_rotary(const RotaryKeys& keys, nlohmann::json& config) {
  config["rope_theta"] = keys.theta;
  config["rope_scaling"] = nullptr;
  if (keys.factor == 1) return;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", keys.factor},
                            {"low_freq_factor", keys.low_frequency_factor},
                            {"high_freq_factor", keys.high_frequency_factor},
                            {"original_max_position_embeddings", keys.original_positions}};
}

}  // namespace colossal::models
