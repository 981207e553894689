#include "colossal/run/unused_keys.h"

#include <map>

#include "colossal/base/config.h"
#include "colossal/base/error.h"

namespace colossal::run {

void refuse_unused_keys(const Config& config, const std::vector<KeyNeed>& needs) {
  const auto values_of = [](const Config& of) {
    std::map<std::string, std::string> values;
    for (const KeyHelp& key : describe_config(of)) values[key.key] = key.default_value;
    return values;
  };
  static const std::map<std::string, std::string> defaults = values_of(Config());
  const std::map<std::string, std::string> values = values_of(config);
  for (const KeyNeed& need : needs) {
    const std::string key = need.key;
    const size_t dot = key.find('.');
    require(need.is_met || values.at(key) == defaults.at(key), key.substr(0, dot).c_str(), key.substr(dot + 1),
            " needs ", need.need, ", without which it has no effect: got ", values.at(key), "; leave it out, or set ",
            "what it needs");
  }
}

void check_unused_keys(const Config& config) {
  const DataConfig& d = config.data;
  const PrecisionConfig& p = config.precision;
  const bool is_fp16 = p.mode == "fp16", is_fp8 = p.mode == "fp8", is_low = is_fp16 || is_fp8 || p.mode == "bf16";
  refuse_unused_keys(config, {
                                 {"data.weights", !d.sources.empty(), "data.sources"},
                                 {"data.mean_span", d.noise_density > 0, "data.noise_density above 0"},
                                 {"data.min_crop_area", d.augment, "data.augment"},
                                 {"precision.masters", is_low, "precision.mode bf16, fp16 or fp8"},
                                 {"precision.loss_scale", is_fp16, "precision.mode fp16"},
                                 {"precision.loss_scale_growth", is_fp16, "precision.mode fp16"},
                                 {"precision.fp8_scaling", is_fp8, "precision.mode fp8"},
                                 {"precision.fp8_margin", is_fp8, "precision.mode fp8"},
                                 {"precision.fp8_history", is_fp8 && p.fp8.scaling == "delayed",
                                  "precision.mode fp8 with precision.fp8_scaling delayed"},
                             });
}

void check_unused_data_keys(const Config& config, const DataUse& use) {
  const std::string text = "a model of text", images = "a model of images", masked = "a masked language model",
                    records = "JSON lines or Parquet in data.path or data.sources";
  const bool has_records = !use.images && use.records;
  refuse_unused_keys(
      config, {
                  {"data.tokenizer", !use.images, text},
                  {"data.sequence", !use.images, text},
                  {"data.documents", !use.images, text},
                  {"data.sources", !use.images, text},
                  {"data.text_columns", has_records, records},
                  {"data.shuffle_bytes", use.streams, records + " that are read as a stream"},
                  {"data.label_column", has_records && use.labels, records + " for a model that classifies texts"},
                  {"data.target_column", has_records && use.targets, records + " for a model that answers texts"},
                  {"data.masked", use.masks, masked},
                  {"data.masked_random", use.masks, masked},
                  {"data.masked_kept", use.masks, masked},
                  {"data.augment", use.images, images},
                  {"data.image_mean", use.images, images},
                  {"data.image_deviation", use.images, images},
                  {"data.min_crop_area", use.images, images},
              });
}

}  // namespace colossal::run
