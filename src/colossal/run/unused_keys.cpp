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

void check_unused_data_keys(const Config& config, const std::string& objective, const models::Task& task,
                            bool streamed) {
  const bool is_masked = objective == "masked-token", is_class = objective == "class",
             is_target = objective == "target";
  if (!is_masked && !is_class && !is_target && objective != "next-token") return;
  const bool reads_images = task.reads == models::Reads::Images, reads_text = task.reads_text();
  const std::string text = "a model of text", images = "a model of images",
                    records = "JSON lines or Parquet in data.path";
  const bool has_records = reads_text && streamed;
  refuse_unused_keys(config, {
                                 {"data.tokenizer", reads_text, text},
                                 {"data.sequence", reads_text, text},
                                 {"data.documents", reads_text, text},
                                 {"data.sources", reads_text, text},
                                 {"data.text_columns", has_records, records},
                                 {"data.shuffle_bytes", has_records && !is_class && !is_target,
                                  records + " that are read as a stream"},
                                 {"data.label_column", has_records && is_class, records + " and objective class"},
                                 {"data.target_column", has_records && is_target, records + " and objective target"},
                                 {"data.masked", is_masked, "objective masked-token"},
                                 {"data.masked_random", is_masked, "objective masked-token"},
                                 {"data.masked_kept", is_masked, "objective masked-token"},
                                 {"data.augment", reads_images, images},
                                 {"data.image_mean", reads_images, images},
                                 {"data.image_deviation", reads_images, images},
                                 {"data.min_crop_area", reads_images, images},
                             });
}

}  // namespace colossal::run
