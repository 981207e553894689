// BERT (arXiv:1810.04805): an encoder whose blocks are normed behind their sums, learned positions and token types;
// asked for masked tokens, or for the class of a text.
#pragma once
#include <string>
#include <vector>

#include "colossal/models/registry.h"

namespace colossal::models {

struct BertSizes {
  std::string objective = "masked-token";
  int64_t classes = 2;
  int64_t types = 2;  ///< rows of the table of token types; all tokens of a text are of type 0
  std::vector<std::string> class_names{};
  std::string activation = "gelu";  ///< of the feed-forward layers and in front of the projection to the vocabulary
  void fields(Fields& f);
  bool operator==(const BertSizes&) const = default;
};

/// Its ends, behind the blocks. "masked-token": dense, activation, norm, and a projection to the vocabulary that shares
/// the embedding's weight and has a bias. "class": of the first token alone dense, tanh, dropout, and a classifier.
Architecture bert_architecture();

}  // namespace colossal::models
