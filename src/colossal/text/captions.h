// Captions of pictures as token ids of one length, which text encoders of models that draw read.
//
//   const text::Captions captions = text::make_captions("stable-diffusion-v1-5/tokenizer");
//   const text::Caption caption = captions("a photograph of an astronaut riding a horse");
//   caption.ids                        // 77 ids: begin, up to 75 tokens, end, pads
//   captions.warning(caption)          // empty, or: "... is longer than 75 tokens; lost: ..."
//   const text::Captions of_t5 = text::make_captions("FLUX.1-dev/tokenizer_2", 512, /*begins=*/false);
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// The ids of one caption.
struct Caption {
  std::vector<int64_t> ids;
  int64_t length = 0;  ///< ids before the pads
  std::string lost{};  ///< the end of the caption that did not fit, as valid UTF-8; empty = all of it fits
};

/// A word of captions that no tokenizer cuts: it stands for `rows` ids.
struct CaptionWord {
  std::string word;
  int64_t rows = 1;
  bool operator==(const CaptionWord&) const = default;
};

/// A converter from captions to ids.
/// Thread safety: const members may be called from several threads.
class Captions {
 public:
  static constexpr int64_t kLength = 77;  ///< tokens of a caption of CLIP

  /// The ids around the tokens of a caption.
  struct Ids {
    int64_t begin;  ///< -1 = captions have no begin token
    int64_t end, pad;
  };
  /// `vocabulary` must exceed all ids. Errors ("captions"): another id outside the vocabulary; a length below 2.
  Captions(std::shared_ptr<const Tokenizer> tokenizer, const Ids& ids, int64_t vocabulary, int64_t length = kLength);

  /// Returns a converter that also reads these words, spelled as they are. Their ids follow each other from `first` on.
  /// A word that begins or ends with a letter or digit is none inside of a longer one; the longest word counts.
  Captions with_words(const std::vector<CaptionWord>& words, int64_t first) const;

  /// Returns length() ids: the begin token, if captions have one, the first tokens of the caption, the end token and
  /// pads.
  Caption operator()(std::string_view text) const;
  /// Returns a warning that names what the caption lost; empty if it lost nothing.
  std::string warning(const Caption& caption) const;

  int64_t length() const { return length_; }
  int64_t vocabulary() const { return vocabulary_; }
  const Ids& ids() const { return ids_; }

 private:
  struct PlacedWord {
    CaptionWord word;
    int64_t first;  // id
  };
  /// Returns the number of tokens of a text that fit.
  int64_t fitting() const { return length_ - (ids_.begin < 0 ? 1 : 2); }
  /// Returns the word at a place of a text; null = there is none.
  const PlacedWord* word_at(std::string_view text, size_t at) const;
  PlacedTokens placed(std::string_view text) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  Ids ids_;
  int64_t vocabulary_, length_;
  std::vector<PlacedWord> words_{};
};

/// Returns the converter that `name` describes. `name` is one of:
/// - "bytes": each byte is a token, for models without a tokenizer. Begin is 256, end 257 and pad 258.
/// - A folder with CLIP's tokenizer, or its tokenizer.json (make_tokenizer()). The pad token is the one that
/// tokenizer_config.json or special_tokens_map.json names: the end token of Stable Diffusion 1, and "!" of 2.
///
/// `begins`: false = the captions of T5, without a begin token. They end in </s>, and pads are those of the folder or
/// <pad>; such a folder has T5's tokenizer, as tokenizer.json or spiece.model.
/// Errors ("captions"): a tokenizer without a begin, end or pad token. Errors of make_tokenizer().
Captions make_captions(const std::string& name, int64_t length = Captions::kLength, bool begins = true);

}  // namespace colossal::text
