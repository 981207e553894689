#include "colossal/run/unused_keys.h"

#include <algorithm>

#include "colossal/base/config.h"
#include "colossal/base/error.h"

namespace colossal::run {

void refuse_unused_keys(const char* section, const std::vector<KeyHelp>& values, const std::vector<KeyHelp>& defaults,
                        const std::vector<KeyNeed>& needs) {
  const auto value_in = [](const std::vector<KeyHelp>& keys, const std::string& name) {
    const auto found = std::find_if(keys.begin(), keys.end(), [&](const KeyHelp& key) { return key.key == name; });
    require(found != keys.end(), "config", "a need must be one of a key of its section: got ", name);
    return found->default_value;
  };
  for (const KeyNeed& need : needs) {
    const std::string value = value_in(values, need.key);
    require(need.is_met || value == value_in(defaults, need.key), section, need.key, " needs ", need.need,
            ", without which it has no effect: got ", value, "; leave it out, or set what it needs");
  }
}

void check_unused_keys(const PrecisionConfig& p) {
  const bool is_fp16 = p.mode == "fp16", is_fp8 = p.mode == "fp8", is_low = is_fp16 || is_fp8 || p.mode == "bf16";
  refuse_unused_keys("precision", describe_config(p), describe_config(PrecisionConfig()),
                     {
                         {"masters", is_low, "precision.mode bf16, fp16 or fp8"},
                         {"loss_scale", is_fp16, "precision.mode fp16"},
                         {"loss_scale_growth", is_fp16, "precision.mode fp16"},
                         {"fp8_scaling", is_fp8, "precision.mode fp8"},
                         {"fp8_margin", is_fp8, "precision.mode fp8"},
                         {"fp8_history", is_fp8 && p.fp8.scaling == "delayed",
                          "precision.mode fp8 with precision.fp8_scaling delayed"},
                     });
}

void check_unused_data_keys(const DataConfig& data, const DataUse& use) {
  const std::string text = "a model of text";
  DataConfig common = data;
  common.own = {};
  refuse_unused_keys("data", describe_config(common), describe_config(DataConfig()),
                     {
                         {"tokenizer", !use.images, text},
                         {"sequence", !use.images, text},
                         {"documents", !use.images, text},
                         {"text_columns", use.records, "JSON lines or Parquet in data.path or data.sources"},
                     });
}

}  // namespace colossal::run
