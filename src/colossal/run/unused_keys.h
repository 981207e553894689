// Refusals of config keys that are set and that other keys, the model or the data leave without effect.
//
//   run::refuse_unused_keys(config, {{"data.weights", !config.data.sources.empty(), "data.sources"}});
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
  const char* key = "";   ///< dotted name
  bool is_met = false;    ///< true if the key has an effect
  std::string need = {};  ///< the condition, for messages: "data.sources"
};

/// Requires the keys whose need is not met to be at their defaults. Errors: with the key's section as component, the
/// first key that is not; the message names key, need and value.
void refuse_unused_keys(const Config& config, const std::vector<KeyNeed>& needs);

/// Refuses keys that other keys leave without effect: of [data] and [precision].
void check_unused_keys(const Config& config);

/// The kinds of data that an objective reads.
struct DataUse {
  bool images = false;   ///< images; otherwise text
  bool records = false;  ///< JSON lines or Parquet; otherwise plain text
  bool streams = false;  ///< records as a stream
  bool masks = false;    ///< hides tokens
  bool labels = false;   ///< a class of each text
  bool targets = false;  ///< a target text of each text
};

/// Refuses keys of [data] that are for other kinds of data.
void check_unused_data_keys(const Config& config, const DataUse& use);

}  // namespace colossal::run
