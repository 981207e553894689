// The own keys of BERT.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::models {

struct BertSizes {
  std::string objective = "masked-token";
  int64_t classes = 2;
  int64_t types = 2;  ///< rows of the table of token types; all tokens of a text have type 0
  std::vector<std::string> class_names{};
  std::string activation = "gelu";  ///< used in the feed-forward layers and before the projection to the vocabulary
  void fields(Fields& f);
  bool operator==(const BertSizes&) const = default;
};

}  // namespace colossal::models
