// Refusals of config keys that are set and that other keys, the model or the data leave without effect.
//
//   run::refuse_unused_data_keys(keys, {{"weights", !keys.sources.empty(), "data.sources"}});
//
// Keys that an explicit switch turns off may stay, so that a flag can turn it: keys of an axis of size 1, of an
// evaluation of 0 batches, of samples of 0 tokens, of clipping at 0. So may those that change speed or memory alone.
#pragma once
#include <string>
#include <vector>

#include "colossal/run/config.h"

namespace colossal::run {

/// A condition without which a key has no effect.
struct KeyNeed {
  const char* key = "";   ///< name in its section
  bool is_met = false;    ///< true if the key has an effect
  std::string need = {};  ///< the condition, for messages: "data.sources"
};

/// Requires the keys whose need is not met to be at their defaults. `values` and `defaults`: the help of the keys of a
/// section. Errors: with the section as component, the first key that is not; the message names key, need and value.
void refuse_unused_keys(const char* section, const std::vector<KeyHelp>& values, const std::vector<KeyHelp>& defaults,
                        const std::vector<KeyNeed>& needs);

/// The same for keys of [data] that an objective has.
template <class Keys>
void refuse_unused_data_keys(const Keys& keys, const std::vector<KeyNeed>& needs) {
  refuse_unused_keys("data", describe_config(keys), describe_config(Keys()), needs);
}

/// Refuses keys of [precision] that other keys leave without effect.
void check_unused_keys(const PrecisionConfig& precision);

/// The kinds of data that an objective reads.
struct DataUse {
  bool images = false;   ///< images; otherwise text
  bool records = false;  ///< JSON lines or Parquet, or pictures with captions
};

/// Refuses keys of [data] that every run has and that are for other kinds of data.
void check_unused_data_keys(const DataConfig& data, const DataUse& use);

}  // namespace colossal::run
