// The keys of the reference of preference training. This header needs no LibTorch.
#pragma once
#include <string>

#include "colossal/base/fields.h"

namespace colossal::run {

/// The table [reference].
struct ReferenceKeys {
  std::string from;  ///< empty = the model from which the run starts
  std::string name;  ///< a preset with random weights in place of `from`, for plans; empty = none
  bool precompute = false;
  std::string cache;  ///< empty = a folder of the run
  void fields(Fields& f);
  bool operator==(const ReferenceKeys&) const = default;
};

}  // namespace colossal::run
