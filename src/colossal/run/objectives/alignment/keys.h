// The keys of the objective alignment, which fine-tunes a language model on chats. This header needs no LibTorch.
#pragma once
#include <string>

#include "colossal/base/fields.h"

namespace colossal::run {

/// The table [alignment].
struct AlignmentKeys {
  std::string method = "sft";
  double noise = 0;
  void fields(Fields& f);
  bool operator==(const AlignmentKeys&) const = default;
};

}  // namespace colossal::run
