// Decoders, which turn tokens into text: the decoder section of a tokenizer.json.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::text {

/// A decoder of the `tokenizers` package. Supported types: null (joins tokens with spaces), Sequence, ByteLevel,
/// WordPiece, Metaspace, BPEDecoder, ByteFallback, Fuse, Strip, Replace, CTC. Bytes that are not UTF-8 are returned as
/// they are; the package writes U+FFFD instead.
class Decoder {
 public:
  /// Errors: throws Error("tokenizer", ...) naming the type that is not supported.
  explicit Decoder(const nlohmann::json& section);
  /// Returns the text of the tokens, in order. `within` is true if other tokens precede them: characters that decoding
  /// strips from the front of a text are then kept.
  std::string operator()(std::vector<std::string> tokens, bool within = false) const;

 private:
  struct State {
    std::vector<std::string> tokens;
    bool within;
    bool fused = false;  ///< true after the tokens were joined into one text
  };
  using Step = std::function<void(State&)>;
  void add(const nlohmann::json& section);
  std::vector<Step> steps_;
  bool joins_with_spaces_ = false;
};

}  // namespace colossal::text
