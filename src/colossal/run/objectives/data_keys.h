// The keys of [data] that the library's objectives have. This header needs no LibTorch, so that every program can list
// them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/run/data_keys.h"

namespace colossal::run {

/// The keys of text that is read as a stream of records.
struct StreamKeys {
  std::vector<std::string> sources;
  std::vector<double> weights;
  int64_t shuffle_bytes = int64_t{64} << 20;
  void fields(Fields& f);
  bool operator==(const StreamKeys&) const = default;
};

/// The keys of the objective masked-token.
struct MaskedTokenKeys {
  StreamKeys stream;
  double masked = 0.15, masked_random = 0.1, masked_kept = 0.1;
  void fields(Fields& f);
  bool operator==(const MaskedTokenKeys&) const = default;
};

/// The keys of the objective target.
struct TargetKeys {
  std::string target_column = "target";
  double noise_density = 0, mean_span = 3;
  void fields(Fields& f);
  bool operator==(const TargetKeys&) const = default;
};

/// The keys of the objective class.
struct ClassKeys {
  std::string label_column = "label";
  bool augment = true;
  std::vector<double> image_mean = {0.485, 0.456, 0.406}, image_deviation = {0.229, 0.224, 0.225};
  double min_crop_area = 0.08;
  void fields(Fields& f);
  bool operator==(const ClassKeys&) const = default;
};

/// The keys of the objective alignment.
struct ChatKeys {
  StreamKeys stream;
  std::string answers = "all", chat_template;
  bool packing = true;
  std::string too_long = "cut";
  std::string pretraining;
  void fields(Fields& f);
  bool operator==(const ChatKeys&) const = default;
};

/// Returns the keys of each objective of the library.
std::vector<DataKeys> built_in_data_keys();

}  // namespace colossal::run
