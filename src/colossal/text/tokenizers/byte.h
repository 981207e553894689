// The byte tokenizer: one token per byte, with the byte as its id, and id 256 for the end of a document. It needs no
// files and encodes any text, whether it is UTF-8 or not.
#pragma once
#include "colossal/text/tokenizer.h"

namespace colossal::text {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kEnd = 256;
  static constexpr const char* kEndSpelling = "<|endoftext|>";  ///< spelling of the end in files, which need one
  std::vector<int64_t> encode(std::string_view text) const override;
  std::string piece(int64_t id) const override;
  int64_t vocabulary_size() const override { return 257; }
  int64_t end_id() const override { return kEnd; }
};

}  // namespace colossal::text
