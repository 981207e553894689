// Tokens back to text: the decoder section of a tokenizer.json.
#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::text {

/// Understood: null (tokens with spaces between), Sequence, ByteLevel, WordPiece, Metaspace, BPEDecoder, ByteFallback,
/// Fuse, Strip, Replace, CTC. Where the package writes U+FFFD for bytes that are not UTF-8, they come out as they are.
class Decoder {
 public:
  /// Errors: throws Error("tokenizer", ...) naming a type that is not understood.
  explicit Decoder(const nlohmann::json& section);
  /// The text of the tokens, in order. `within`: other tokens stand before them, so that what is taken from the front
  /// of a text stays.
  std::string operator()(std::vector<std::string> tokens, bool within = false) const;

 private:
  struct State {
    std::vector<std::string> tokens;
    bool within;
    bool fused = false;  ///< they are one text
  };
  using Step = std::function<void(State&)>;
  void add(const nlohmann::json& section);
  std::vector<Step> steps_;
  bool joins_with_spaces_ = false;
};

}  // namespace colossal::text
