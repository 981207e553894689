// BERT (arXiv:1810.04805): a post-norm encoder (each norm follows a residual sum) with learned positions and token
// types. It predicts masked tokens or the class of a text.
#pragma once
#include <string>
#include <vector>

#include "colossal/models/registry.h"

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

/// Returns the architecture, with one of two heads after the blocks, by BertSizes::objective. "masked-token": dense,
/// activation, norm, and a projection to the vocabulary that shares the embedding's weight (unless ModelShape::tied is
/// false) and has a bias. "class": of the first token alone dense, tanh and dropout, and a classifier.
Architecture bert_architecture();

}  // namespace colossal::models
